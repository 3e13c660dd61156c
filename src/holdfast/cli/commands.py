"""The table of commands. Imports nothing: `holdfast health` and `--version` start with this file."""


class Command:
    """The function to call, as `module:function`, and the text of `--help`."""

    def __init__(self, entry_point: str, summary: str, *examples: str) -> None:
        self.entry_point = entry_point
        self.summary = summary
        self.examples = examples


COMMANDS = {
    "run": Command(
        "run:run",
        "start the gateway",
        "holdfast run --config /etc/holdfast.toml",
        "holdfast run --store ./data --set log.format=text",
        "holdfast run --config /etc/holdfast.toml --role ingest",
    ),
    "demo": Command("demo:demo", "watch days of a message and a circuit in a minute", "holdfast demo"),
    "check": Command("run:check", "check a config and show its effect", "holdfast check /etc/holdfast.toml"),
    "status": Command("status:status", "show the state of the gateway", "holdfast status", "holdfast status --watch"),
    "circuits": Command(
        "circuits:circuits",
        "list the circuits, or show one",
        "holdfast circuits --state frozen",
        "holdfast circuits hooks.example.com",
    ),
    "freeze": Command(
        "circuits:freeze",
        "send nothing to a host until it is unfrozen",
        "holdfast freeze hooks.example.com",
        "holdfast freeze not-seen-yet.example.com:443",
    ),
    "unfreeze": Command(
        "circuits:unfreeze",
        "send to a frozen or disabled host again",
        "holdfast unfreeze hooks.example.com --replay-dead",
        "holdfast unfreeze --all",
    ),
    "probe": Command("circuits:probe", "try a disabled host now", "holdfast probe hooks.example.com"),
    "messages": Command(
        "messages:messages",
        "list messages, or show, retry or drop them",
        "holdfast messages list --state retrying --host hooks.example.com",
        "holdfast messages show msg_019b76da9c8000000000000000000001",
    ),
    "why": Command(
        "messages:why",
        "explain why a message waits",
        "holdfast why msg_019b76da9c8000000000000000000001",
    ),
    "dead": Command(
        "dead:dead",
        "list, replay, drop or export dead messages",
        "holdfast dead replay --host hooks.example.com --since 2h",
        "holdfast dead export dead.jsonl",
    ),
    "tail": Command("tail:tail", "show events as they happen", "holdfast tail"),
    "drain": Command(
        "status:drain",
        "finish what is due without stopping, and report not ready",
        "holdfast drain --wait",
        "holdfast drain --cancel",
    ),
    "reload": Command("status:reload", "reload the config of the running gateway", "holdfast reload"),
    "send": Command(
        "send:send",
        "send a webhook through the gateway",
        'holdfast send https://hooks.example.com/in -d \'{"hello": "world"}\'',
    ),
    "health": Command(
        "health:health", "exit with 0 if the gateway is healthy, else with 1", "holdfast health --status 127.0.0.1:8801"
    ),
    "fsck": Command(
        "store_commands:fsck",
        "check a stopped store or a database, and repair it",
        "holdfast fsck",
        "holdfast fsck --repair",
    ),
    "export": Command(
        "store_commands:export",
        "write a stopped store or a database as JSON lines, unredacted",
        "holdfast export backup.jsonl",
        "holdfast export - | gzip > backup.jsonl.gz",
    ),
    "import": Command(
        "store_commands:import_",
        "read an export into a stopped or new store, or a database",
        "holdfast import backup.jsonl",
        "gunzip < backup.jsonl.gz | holdfast import -",
    ),
    "compact": Command(
        "store_commands:compact", "rewrite a stopped store's file without free pages", "holdfast compact"
    ),
    "handoff": Command(
        "store_commands:handoff",
        "move waiting and dead messages of a stopped store to a database",
        "holdfast handoff --to postgresql://holdfast@db.example.com/holdfast",
    ),
    "migrate": Command(
        "store_commands:migrate",
        "update the tables of a shared database to this version",
        "holdfast migrate --config /etc/holdfast.toml",
    ),
    "completions": Command(
        "completions:completions",
        "print the completion script of a shell",
        "holdfast completions fish > ~/.config/fish/completions/holdfast.fish",
        "source <(holdfast completions bash)",
    ),
}
