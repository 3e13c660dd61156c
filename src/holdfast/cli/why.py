"""`holdfast why`: what a message waits for, and the rule behind it, in the gateway's own words."""

import json

from holdfast.cli.gateway import Gateway, segment
from holdfast.cli.parsing import add_control, command_parser, name
from holdfast.cli.settings import control_socket
from holdfast.cli.text import clean


def why(arguments: list[str]) -> int:
    parser = command_parser("why")
    parser.add_argument("id", metavar="ID", type=name, help="the id that ingest answered with")
    add_control(parser)
    options = parser.parse_args(arguments)
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        message = gateway.get(f"/v1/messages/{segment(options.id)}")
    document = {field: message[field] for field in ("id", "state", "why")}
    print(json.dumps(document) if options.json else clean(document["why"]))
    return 0
