"""`holdfast reload`: the running gateway takes over the config as it is now."""

import json

from holdfast.cli.gateway import Document, Gateway
from holdfast.cli.parsing import add_control, command_parser
from holdfast.cli.settings import control_socket


def reload(arguments: list[str]) -> int:
    parser = command_parser("reload")
    add_control(parser)
    options = parser.parse_args(arguments)
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        answer = gateway.post("/v1/reload", {})
    print(json.dumps(answer) if options.json else "\n".join(render(answer)))
    return 0


def render(answer: Document) -> list[str]:
    changed, left = answer["changed"], answer["needs_restart"]
    lines = [f"reloaded: {', '.join(changed)}" if changed else "reloaded: nothing has changed"]
    if left:
        lines.append(f"waits for a restart: {', '.join(left)}")
    return lines
