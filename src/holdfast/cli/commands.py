"""Every command as data. Imports nothing: `holdfast health` and `--version` start with this file."""


class Command:
    """Where a command lives, as `module:function`, and what `--help` says about it."""

    def __init__(self, place: str, summary: str, *examples: str) -> None:
        self.place = place
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
    "demo": Command(
        "demo:demo",
        "watch a message and a circuit live through days in a minute",
        "holdfast demo",
    ),
    "check": Command(
        "check:check",
        "check a config and show what it comes to",
        "holdfast check /etc/holdfast.toml",
    ),
    "status": Command(
        "status:status",
        "show how the gateway is doing",
        "holdfast status",
        "holdfast status --watch",
    ),
    "circuits": Command(
        "circuits:circuits",
        "list the circuits, or show one",
        "holdfast circuits --state frozen",
        "holdfast circuits hooks.example.com",
    ),
    "freeze": Command(
        "switching:freeze",
        "send nothing to a host until it is unfrozen",
        "holdfast freeze hooks.example.com",
        "holdfast freeze not-seen-yet.example.com:443",
    ),
    "unfreeze": Command(
        "switching:unfreeze",
        "send to a frozen or disabled host again",
        "holdfast unfreeze hooks.example.com --replay-dead",
        "holdfast unfreeze --all",
    ),
    "probe": Command(
        "switching:probe",
        "try a disabled host now",
        "holdfast probe hooks.example.com",
    ),
    "messages": Command(
        "messages:messages",
        "list messages, or show, retry or drop them",
        "holdfast messages list --state retrying --host hooks.example.com",
        "holdfast messages show msg_019b76da9c8000000000000000000001",
    ),
    "why": Command(
        "why:why",
        "say what a message waits for",
        "holdfast why msg_019b76da9c8000000000000000000001",
    ),
    "dead": Command(
        "dead:dead",
        "list, replay, drop or export dead messages",
        "holdfast dead replay --host hooks.example.com --since 2h",
        "holdfast dead export dead.jsonl",
    ),
    "tail": Command(
        "tail:tail",
        "show what happens, live",
        "holdfast tail",
    ),
    "drain": Command(
        "drain:drain",
        "let the gateway finish what is due, as before a stop",
        "holdfast drain --wait",
        "holdfast drain --cancel",
    ),
    "reload": Command(
        "reload:reload",
        "let the gateway take over its config as it is now",
        "holdfast reload",
    ),
    "send": Command(
        "send:send",
        "send a webhook through the gateway",
        'holdfast send https://hooks.example.com/in -d \'{"hello": "world"}\'',
    ),
    "health": Command(
        "health:health",
        "exit with 0 if the gateway is healthy, else with 1",
        "holdfast health --status 127.0.0.1:8801",
    ),
    "fsck": Command(
        "offline:fsck",
        "check a stopped store or a database, and mend it",
        "holdfast fsck",
        "holdfast fsck --repair",
    ),
    "export": Command(
        "offline:export",
        "write a stopped store or a database as JSON lines, with nothing redacted",
        "holdfast export backup.jsonl",
        "holdfast export - | gzip > backup.jsonl.gz",
    ),
    "import": Command(
        "offline:take",
        "read an export into a stopped or new store, or into a database",
        "holdfast import backup.jsonl",
        "gunzip < backup.jsonl.gz | holdfast import -",
    ),
    "compact": Command(
        "offline:compact",
        "rewrite a stopped store's file without free pages",
        "holdfast compact",
    ),
    "handoff": Command(
        "handoff:handoff",
        "move what waits and what is dead from a stopped store to a fleet's database",
        "holdfast handoff --to postgresql://holdfast@db.example.com/holdfast",
    ),
    "migrate": Command(
        "migrate:migrate",
        "bring the tables of a shared database to this version",
        "holdfast migrate --config /etc/holdfast.toml",
    ),
    "completions": Command(
        "completions:completions",
        "print what makes a shell complete these commands",
        "holdfast completions fish > ~/.config/fish/completions/holdfast.fish",
        "source <(holdfast completions bash)",
    ),
}
