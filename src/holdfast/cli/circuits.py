"""`holdfast circuits` and `holdfast unfreeze`: the hosts that are sent to, and letting one be sent to again."""

import json
from collections.abc import Iterator
from datetime import datetime

from holdfast.cli.gateway import Document, Gateway, segment
from holdfast.cli.parsing import add_control, command_parser
from holdfast.cli.settings import control_socket
from holdfast.cli.text import Table, clean, colour_wanted, count, facts, painted
from holdfast.cli.times import absolute, relative, wall_clock

STATES = ("enabled", "disabled", "frozen")

# Replaying a host's dead letters goes through all of them before it is answered.
REPLAY_PATIENCE = 600.0

_HEADINGS = ("STATE", "SINCE", "WHY", "WAITING", "DEAD", "FAILED", "PROBE", "HOST")
_RIGHT = ("WAITING", "DEAD", "FAILED")
_REASONS = {
    "failure_rate": "too large a part of its attempts failed",
    "consecutive_failures": "too many failures in a row",
    "silence": "it kept failing, and the last success is too long ago",
    "consecutive_limit": "far too many failures in a row",
    "operator": "an operator froze it",
}


def circuits(arguments: list[str]) -> int:
    parser = command_parser("circuits")
    parser.add_argument("host", nargs="?", metavar="HOST", help="show only this one, at length")
    parser.add_argument("--state", choices=STATES, help="list only circuits in this state")
    add_control(parser)
    options = parser.parse_args(arguments)
    if options.host is not None and options.state:
        parser.error("--state goes with the list, not with a HOST")
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        if options.host is None:
            _list(gateway, options.state, options.json)
        else:
            document = gateway.get(f"/v1/circuits/{segment(options.host)}")
            lines = [json.dumps(document)] if options.json else render(document, wall_clock(), colour_wanted())
            print("\n".join(lines))
    return 0


def _list(gateway: Gateway, state: str | None, as_json: bool) -> None:
    table = Table(_HEADINGS, right=_RIGHT, colour=colour_wanted())
    found = False
    for page in gateway.pages("circuits", {"state": state}):
        if not page:
            continue
        found = True
        lines = map(json.dumps, page) if as_json else table.lines(row(each, wall_clock()) for each in page)
        print("\n".join(lines), flush=True)
    if not found and not as_json:
        print(f"no {state} circuits" if state else "no circuits yet")


def row(circuit: Document, now: datetime) -> list[str]:
    window = circuit["window"]
    return [
        circuit["state"],
        relative(circuit["since"], now),
        circuit["reason"] or "-",
        f"{circuit['waiting']:,}",
        f"{circuit['dead']:,}",
        f"{window['failures']:,}/{window['attempts']:,}",
        relative(circuit["next_probe_at"], now),
        circuit["host"],
    ]


def render(circuit: Document, now: datetime, colour: bool = False) -> list[str]:
    """One circuit at length."""
    state, window = circuit["state"], circuit["window"]
    why = f": {_REASONS.get(circuit['reason'], circuit['reason'])}" if circuit["reason"] else ""
    last_success = circuit["last_success_at"]
    return [
        f"{clean(circuit['host'])} is {painted(state, colour)}{clean(why)}",
        *facts(
            [
                ("since", absolute(circuit["since"], now)),
                ("sends", _sends(circuit, now)),
                ("in a row", count(circuit["consecutive_failures"], "failure")),
                ("window", f"{window['failures']:,} of {count(window['attempts'], 'attempt')} failed"),
                ("last success", absolute(last_success, now) if last_success else "never"),
                ("first attempt", absolute(circuit["first_attempt_at"], now)),
                ("waiting", count(circuit["waiting"], "message")),
                ("dead", count(circuit["dead"], "message")),
            ]
        ),
    ]


def _sends(circuit: Document, now: datetime) -> str:
    if circuit["state"] == "enabled":
        return f"everything, at most {circuit['limit']} at once"
    if circuit["state"] == "frozen":
        return f"nothing, until: holdfast unfreeze {circuit['host']}"
    probe = circuit["next_probe_at"]
    return f"one probe at a time, the next {relative(probe, now)}" if probe else "one probe at a time"


def unfreeze(arguments: list[str]) -> int:
    parser = command_parser("unfreeze")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("host", nargs="?", metavar="HOST", help="a circuit's key, or a host without its port")
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
