"""`holdfast circuits`, `freeze`, `unfreeze` and `probe`."""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime

from holdfast.cli.arguments import add_control, add_watch, command_parser, non_empty
from holdfast.cli.command_error import clean
from holdfast.cli.control_client import BULK_TIMEOUT, PAGE, ControlClient, Document, segment
from holdfast.cli.output import (
    TextTable,
    absolute,
    colour_wanted,
    count,
    facts,
    list_lines,
    painted,
    relative,
    show_view,
)

STATES = ("enabled", "disabled", "frozen")

_HEADINGS = ("STATE", "SINCE", "WHY", "WAITING", "DEAD", "FAILED", "PROBE", "HOST")
_REASONS = {
    "failure_rate": "too large a part of its attempts failed",
    "consecutive_failures": "too many failures in a row",
    "silence": "it kept failing, and the last success is too long ago",
    "consecutive_limit": "far too many failures in a row",
    "operator": "an operator froze it",
}
_HOST = "a circuit's key, or a host without its port"


# -- circuits --------------------------------------------------------------------------------------------------------


def circuits(arguments: list[str]) -> int:
    parser = command_parser("circuits")
    parser.add_argument("host", nargs="?", metavar="HOST", help="show only this one, in detail")
    parser.add_argument("--state", choices=STATES, help="list only circuits in this state")
    add_watch(parser)
    add_control(parser)
    options = parser.parse_args(arguments)
    if options.host is not None and options.state:
        parser.error("--state goes with the list, not with a HOST")
    with ControlClient(options) as client:
        if options.host is not None:
            show_view(lambda: _one(client, options), watch=options.watch, as_json=options.json)
        elif options.watch:
            show_view(lambda: _whole_list(client, options), watch=True, as_json=options.json)
        else:
            for lines in _list(client, options):
                print("\n".join(lines), flush=True)
    return 0


def _one(client: ControlClient, options: argparse.Namespace) -> list[str]:
    document = client.get(f"/v1/circuits/{segment(options.host)}")
    return [json.dumps(document)] if options.json else circuit_details(document, client.now(), colour_wanted())


def _whole_list(client: ControlClient, options: argparse.Namespace) -> list[str]:
    # It is requested every 2 s, and no screen shows more than a page of it.
    limit = PAGE if sys.stdout.isatty() and not options.json else None
    return [line for lines in _list(client, options, limit) for line in lines]


def _list(client: ControlClient, options: argparse.Namespace, limit: int | None = None) -> Iterator[list[str]]:
    return list_lines(
        client.pages("circuits", {"state": options.state}, limit),
        TextTable(_HEADINGS, right=("WAITING", "DEAD", "FAILED"), colour=colour_wanted()),
        circuit_row,
        client.now,
        as_json=options.json,
        none_found=f"no {options.state} circuits" if options.state else "no circuits yet",
    )


def circuit_row(circuit: Document, now: datetime) -> list[str]:
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


def circuit_details(circuit: Document, now: datetime, colour: bool = False) -> list[str]:
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


# -- freeze, unfreeze, probe -----------------------------------------------------------------------------------------


def freeze(arguments: list[str]) -> int:
    parser = command_parser("freeze")
    parser.add_argument("host", metavar="HOST", type=non_empty, help=f"{_HOST}; HOST:PORT also names one not seen yet")
    add_control(parser)
    options = parser.parse_args(arguments)
    with ControlClient(options) as client:
        now = client.now()
        answer = client.post(f"/v1/circuits/{segment(options.host)}/freeze", {})
    print(json.dumps(answer) if options.json else clean(freeze_text(answer, now)))
    return 0


def freeze_text(answer: Document, now: datetime) -> str:
    circuit, expiry = answer["circuit"], answer["messages_expire_from"]
    state = "is frozen" if answer["changed"] else "was frozen already"
    if expiry is None:
        waiting = "no message waits for it, so none expires yet"
    else:
        waiting = f"{count(circuit['waiting'], 'message')} waiting, expiring from {absolute(expiry, now)} on"
    return f"{circuit['host']} {state}; {waiting}"


def unfreeze(arguments: list[str]) -> int:
    parser = command_parser("unfreeze")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("host", nargs="?", metavar="HOST", type=non_empty, help=_HOST)
    which.add_argument("--all", action="store_true", help="every frozen circuit")
    parser.add_argument("--replay-dead", action="store_true", help="also replay its dead messages")
    add_control(parser)
    options = parser.parse_args(arguments)
    body = {"replay_dead": True} if options.replay_dead else {}
    with ControlClient(options) as client:
        hosts = _frozen(client) if options.all else iter([options.host])
        answer = None
        for host in hosts:
            answer = client.post(f"/v1/circuits/{segment(host)}/unfreeze", body, BULK_TIMEOUT)
            print(json.dumps(answer) if options.json else clean(unfreeze_text(answer)))
    if answer is None and not options.json:
        print("no frozen circuits")
    return 0


def _frozen(client: ControlClient) -> Iterator[str]:
    # Pages are sorted by key, so unfreezing the circuits of one page does not shift the next.
    for page in client.pages("circuits", {"state": "frozen"}):
        yield from (circuit["host"] for circuit in page)


def unfreeze_text(answer: Document) -> str:
    circuit = answer["circuit"]
    parts = [f"{circuit['host']} {'is enabled again' if answer['changed'] else 'was enabled already'}"]
    if answer["replayed"]:
        parts.append(f"{count(answer['replayed'], 'dead message')} replayed")
    if circuit["waiting"]:
        parts.append(f"{count(circuit['waiting'], 'message')} waiting")
    return "; ".join(parts)


def probe(arguments: list[str]) -> int:
    parser = command_parser("probe")
    parser.add_argument("host", metavar="HOST", type=non_empty, help=_HOST)
    add_control(parser)
    options = parser.parse_args(arguments)
    with ControlClient(options) as client:
        answer = client.post(f"/v1/circuits/{segment(options.host)}/probe", {})
    circuit = answer["circuit"]
    what = "is probed now" if circuit["waiting"] else "has nothing waiting: the next message to arrive is the probe"
    print(json.dumps(answer) if options.json else clean(f"{circuit['host']} {what}"))
    return 0
