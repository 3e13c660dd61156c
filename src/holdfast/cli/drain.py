"""`holdfast drain`: as before a stop, without stopping: not ready any more, while what is due goes out."""

import json

from holdfast.cli.failure import Failure
from holdfast.cli.gateway import Document, Gateway
from holdfast.cli.parsing import add_control, command_parser
from holdfast.cli.settings import control_socket
from holdfast.cli.text import count


def drain(arguments: list[str]) -> int:
    parser = command_parser("drain")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--wait", action="store_true", help="until nothing is due or in flight, else exit with 1 after drain.timeout"
    )
    how.add_argument("--cancel", action="store_true", help="be ready again")
    add_control(parser)
    options = parser.parse_args(arguments)
    body = {name: True for name in ("wait", "cancel") if getattr(options, name)}
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        # How long it may wait is the gateway's setting; it does answer then.
        answer = gateway.post("/v1/drain", body, None)
    is_late = options.wait and not answer["quiet"]
    if options.json:
        print(json.dumps(answer))
    elif not is_late:
        print(render(answer))
    if is_late:
        raise Failure(f"still not quiet after drain.timeout: {_under_way(answer)}")
    return 0


def render(answer: Document) -> str:
    if not answer["draining"]:
        return "not draining: it is ready"
    return f"draining: {'nothing is due or in flight' if answer['quiet'] else _under_way(answer)}"


def _under_way(answer: Document) -> str:
    in_flight = answer["in_flight"]
    return f"{count(in_flight, 'attempt')} in flight" if in_flight else "some messages are due"
