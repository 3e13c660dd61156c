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
    ),
    "circuits": Command(
        "circuits:circuits",
        "list the circuits, or show one",
        "holdfast circuits --state frozen",
        "holdfast circuits hooks.example.com",
    ),
    "unfreeze": Command(
        "circuits:unfreeze",
        "send to a frozen or disabled host again",
        "holdfast unfreeze hooks.example.com --replay-dead",
        "holdfast unfreeze --all",
    ),
    "messages": Command(
        "messages:messages",
        "list messages, or show one with its attempts",
        "holdfast messages list --state dead --host hooks.example.com",
        "holdfast messages show msg_019b76da9c8000000000000000000001",
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
}
