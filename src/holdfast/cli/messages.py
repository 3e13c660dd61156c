"""`holdfast messages`: what was accepted, where it stands, and what was tried; message_actions.py acts on it."""

import argparse
import json
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.cli import message_actions as actions
from holdfast.cli.gateway import Document, Gateway, segment
from holdfast.cli.parsing import Parser, add_action, add_control, command_parser, name, positive
from holdfast.cli.settings import control_socket
from holdfast.cli.text import Table, clean, colour_wanted, facts, human_size, painted, shortened
from holdfast.cli.times import absolute, parse_moment, relative, took
from holdfast.core.message import MessageState

_HEADINGS = ("ID", "STATE", "ACCEPTED", "RETRIES", "NEXT", "HOST")
_ATTEMPT_HEADINGS = ("#", "KIND", "AT", "TOOK", "RESULT", "FAULT", "ADDRESS", "DETAIL")
_ANSWER_LENGTH = 160
_DEAD_REASONS = {
    "exhausted": "its last retry failed",
    "expired": "its circuit let nothing through for too long",
}


def messages(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        options.act(gateway, options)
    return 0


def _parser() -> Parser:
    parser = command_parser("messages")
    words = parser.add_subparsers(required=True, metavar="list|show|retry|drop")
    listing = add_action(words, "list", "list messages", "holdfast messages list --state dead --limit 20")
    listing.add_argument("--state", choices=[state.value for state in MessageState], help="only those in this state")
    listing.add_argument("--host", metavar="HOST", type=name, help="only those to this host")
    listing.add_argument("--limit", metavar="N", type=positive, help="at most this many (default: all)")
    showing = add_action(
        words,
        "show",
        "show one message, its attempts, and what comes next",
        "holdfast messages show msg_019b76da9c8000000000000000000001",
    )
    retrying = add_action(
        words,
        "retry",
        "make a waiting message due now, or give a dead one a new life",
        "holdfast messages retry msg_019b76da9c8000000000000000000001",
    )
    for one in (showing, retrying):
        one.add_argument("id", metavar="ID", type=name, help="the id that ingest answered with")
    dropping = add_action(
        words,
        "drop",
        "drop one message for good, or many",
        "holdfast messages drop msg_019b76da9c8000000000000000000001",
        "holdfast messages drop --host hooks.example.com --before 2h --state held",
    )
    actions.add_drop(dropping)
    does = {listing: _list, showing: _show, retrying: actions.retry, dropping: actions.drop}
    for word, act in does.items():
        word.set_defaults(act=act)
        add_control(word)
    return parser


def _show(gateway: Gateway, options: argparse.Namespace) -> None:
    document = gateway.get(f"/v1/messages/{segment(options.id)}")
    lines = [json.dumps(document)] if options.json else render(document, gateway.now(), colour_wanted())
    print("\n".join(lines))


def _list(gateway: Gateway, options: argparse.Namespace) -> None:
    table = Table(_HEADINGS, right=("RETRIES",), colour=colour_wanted())
    found = False
    for page in gateway.pages("messages", {"state": options.state, "host": options.host}, options.limit):
        if not page:
            continue
        found = True
        lines = map(json.dumps, page) if options.json else table.lines(map(partial(row, now=gateway.now()), page))
        print("\n".join(lines), flush=True)
    if not found and not options.json:
        print(clean(nothing_found(options.state, options.host)))


def nothing_found(state: str | None, host: str | None) -> str:
    if state is None and host is None:
        return "no messages yet"
    kind = f"{state.replace('_', ' ')} messages" if state else "messages"
    return f"no {kind} for {host}" if host else f"no {kind}"


def row(message: Document, now: datetime) -> list[str]:
    return [
        message["id"],
        message["state"],
        relative(message["accepted_at"], now),
        str(message["retry"]),
        message["dead_reason"] or _next(message, now),
        message["host"],
    ]


def _next(message: Document, now: datetime) -> str:
    # A held message keeps its due time, but that is not when it goes out.
    return "circuit" if message["state"] == MessageState.HELD else relative(message["next_attempt_at"], now)


def render(message: Document, now: datetime, colour: bool = False) -> list[str]:
    """The facts, the attempts, and what comes next."""
    pairs = [
        ("target", f"{message['method']} {message['target']}"),
        ("host", message["host"]),
        ("size", human_size(message["size"])),
        ("accepted", absolute(message["accepted_at"], now)),
        ("retries", str(message["retry"])),
    ]
    if message["route"]:
        pairs.insert(2, ("route", message["route"]))
    if message["finished_at"]:
        pairs.append(("finished", absolute(message["finished_at"], now)))
    return [
        f"{clean(message['id'])} is {painted(message['state'], colour)}",
        *facts(pairs),
        "",
        *_attempts(message["attempts"], now),
        "",
        *facts([("next", upcoming(message, now))]),
    ]


def _attempts(attempts: list[Document], now: datetime) -> list[str]:
    if not attempts:
        return ["no failed attempts"]
    table = Table(_ATTEMPT_HEADINGS, right=("#", "TOOK"))
    return table.lines(attempt_row(each, now) for each in attempts)


def attempt_row(attempt: Document, now: datetime) -> list[str]:
    return [
        str(attempt["number"]),
        attempt["kind"],
        relative(attempt["at"], now),
        took(attempt["duration"]),
        _result(attempt),
        attempt["fault"] or "-",
        attempt["address"] or "-",
        _detail(attempt),
    ]


def _result(attempt: Document) -> str:
    return attempt["error"] or (str(attempt["status"]) if attempt["status"] is not None else "-")


def _detail(attempt: Document) -> str:
    parts: list[Any] = [attempt["detail"]]
    if attempt["answer"]:
        # The whole of it is in --json; here its beginning tells one error page from another.
        parts.append("answer: " + shortened(" ".join(attempt["answer"].split()), _ANSWER_LENGTH))
    return "; ".join(filter(None, parts))


def upcoming(message: Document, now: datetime) -> str:
    """What comes next for this message, by its state."""
    state, due = message["state"], message["next_attempt_at"]
    if state == MessageState.DELIVERED:
        return "nothing, it was delivered"
    if state == MessageState.DEAD:
        why = _DEAD_REASONS.get(message["dead_reason"], message["dead_reason"])
        return f"nothing, {why}; holdfast messages retry {message['id']} gives it a new life"
    if state == MessageState.IN_FLIGHT:
        return "an attempt is under way"
    if state == MessageState.HELD:
        return f"it waits for its circuit, see: holdfast circuits {message['host']}"
    which = f"retry {message['retry'] + 1}" if state == MessageState.RETRYING else "the first attempt"
    if due is None:
        return f"{which}, as soon as its host has room"
    return f"{which} {relative(due, now)}" if parse_moment(due) > now else f"{which}, due {relative(due, now)}"
