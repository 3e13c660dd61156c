"""`holdfast circuits`: the hosts that are sent to, how each is doing, and why."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from holdfast.cli.gateway import PAGE, Document, Gateway, segment
from holdfast.cli.parsing import add_control, add_watch, command_parser
from holdfast.cli.settings import control_socket
from holdfast.cli.text import Table, clean, colour_wanted, count, facts, painted
from holdfast.cli.times import absolute, relative
from holdfast.cli.watching import show

STATES = ("enabled", "disabled", "frozen")

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
    add_watch(parser)
    add_control(parser)
    options = parser.parse_args(arguments)
    if options.host is not None and options.state:
        parser.error("--state goes with the list, not with a HOST")
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        if options.host is not None:
            show(lambda: _one(gateway, options.host, options.json), watch=options.watch, as_json=options.json)
        elif options.watch:
            show(lambda: _watched(gateway, options.state, options.json), watch=True, as_json=options.json)
        else:
            for lines in _pages(gateway, options.state, options.json):
                print("\n".join(lines), flush=True)
    return 0


def _one(gateway: Gateway, host: str, as_json: bool) -> list[str]:
    document = gateway.get(f"/v1/circuits/{segment(host)}")
    return [json.dumps(document)] if as_json else render(document, gateway.now(), colour_wanted())


def _watched(gateway: Gateway, state: str | None, as_json: bool) -> list[str]:
    """All of the list, but no more of it than a screen may show: it is asked for every 2 s."""
    limit = PAGE if sys.stdout.isatty() and not as_json else None
    return [line for lines in _pages(gateway, state, as_json, limit) for line in lines]


def _pages(gateway: Gateway, state: str | None, as_json: bool, limit: int | None = None) -> Iterator[list[str]]:
    table = Table(_HEADINGS, right=_RIGHT, colour=colour_wanted())
    found = False
    for page in gateway.pages("circuits", {"state": state}, limit):
        if page:
            found = True
            yield [*map(json.dumps, page)] if as_json else table.lines(map(partial(row, now=gateway.now()), page))
    if not found and not as_json:
        yield [f"no {state} circuits" if state else "no circuits yet"]


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
