"""`holdfast freeze`, `unfreeze` and `probe`: stop sending to a host, send to it again, or try it now."""

import json
from collections.abc import Iterator
from datetime import datetime

from holdfast.cli.gateway import Document, Gateway, segment
from holdfast.cli.parsing import add_control, command_parser, name
from holdfast.cli.settings import control_socket
from holdfast.cli.text import clean, count
from holdfast.cli.times import absolute

# Replaying a host's dead letters goes through all of them before it is answered.
REPLAY_PATIENCE = 600.0

_HOST = "a circuit's key, or a host without its port"


def freeze(arguments: list[str]) -> int:
    parser = command_parser("freeze")
    parser.add_argument("host", metavar="HOST", type=name, help=f"{_HOST}; as HOST:PORT also one not seen yet")
    add_control(parser)
    options = parser.parse_args(arguments)
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        now = gateway.now()
        answer = gateway.post(f"/v1/circuits/{segment(options.host)}/freeze", {})
    print(json.dumps(answer) if options.json else clean(render_freeze(answer, now)))
    return 0


def render_freeze(answer: Document, now: datetime) -> str:
    circuit, expiry = answer["circuit"], answer["messages_expire_from"]
    state = "is frozen" if answer["changed"] else "was frozen already"
    if expiry is None:
        waits = "no message waits for it, so none expires yet"
    else:
        waits = f"{count(circuit['waiting'], 'message')} waiting, expiring from {absolute(expiry, now)} on"
    return f"{circuit['host']} {state}; {waits}"


def probe(arguments: list[str]) -> int:
    parser = command_parser("probe")
    parser.add_argument("host", metavar="HOST", type=name, help=_HOST)
    add_control(parser)
    options = parser.parse_args(arguments)
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        answer = gateway.post(f"/v1/circuits/{segment(options.host)}/probe", {})
    print(json.dumps(answer) if options.json else clean(render_probe(answer)))
    return 0


def render_probe(answer: Document) -> str:
    circuit = answer["circuit"]
    what = "is probed now" if circuit["waiting"] else "has nothing waiting: the next message to arrive is the probe"
    return f"{circuit['host']} {what}"


def unfreeze(arguments: list[str]) -> int:
    parser = command_parser("unfreeze")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("host", nargs="?", metavar="HOST", type=name, help=_HOST)
    which.add_argument("--all", action="store_true", help="every frozen circuit")
    parser.add_argument("--replay-dead", action="store_true", help="give its dead messages a new life too")
    add_control(parser)
    options = parser.parse_args(arguments)
    body = {"replay_dead": True} if options.replay_dead else {}
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        hosts = _frozen(gateway) if options.all else iter([options.host])
        found = False
        for host in hosts:
            found = True
            answer = gateway.post(f"/v1/circuits/{segment(host)}/unfreeze", body, REPLAY_PATIENCE)
            print(json.dumps(answer) if options.json else clean(render_unfreeze(answer)))
    if not found and not options.json:
        print("no frozen circuits")
    return 0


def _frozen(gateway: Gateway) -> Iterator[str]:
    """Keys only grow from page to page, so unfreezing those of one page hides none of the next."""
    for page in gateway.pages("circuits", {"state": "frozen"}):
        yield from (circuit["host"] for circuit in page)


def render_unfreeze(answer: Document) -> str:
    circuit = answer["circuit"]
    parts = [f"{circuit['host']} {'is enabled again' if answer['changed'] else 'was enabled already'}"]
    if answer["replayed"]:
        parts.append(f"{count(answer['replayed'], 'dead message')} replayed")
    if circuit["waiting"]:
        parts.append(f"{count(circuit['waiting'], 'message')} waiting")
    return "; ".join(parts)
