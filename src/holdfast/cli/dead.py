"""`holdfast dead`: what could not be delivered: listed, given a new life, dropped, or written out whole."""

import argparse
import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from urllib.parse import urlencode

from holdfast.cli import exporting
from holdfast.cli.bulk import Bulk, carry_out
from holdfast.cli.failure import Failure
from holdfast.cli.filters import add_yes, any_given, confirm, no_later, when
from holdfast.cli.gateway import Document, Gateway, segment
from holdfast.cli.parsing import Parser, add_action, add_control, command_parser, name, positive
from holdfast.cli.progress import bar_wanted
from holdfast.cli.settings import control_socket
from holdfast.cli.text import Table, clean, count, human_size
from holdfast.cli.times import parse_moment, relative, resolved, spelled_out
from holdfast.core.message import DeadReason

_HEADINGS = ("ID", "DIED", "REASON", "RETRIES", "LAST", "HOST")
_FILTERS = ("host", "since", "until", "reason")
_NARROW = ("since", "until", "reason")


def dead(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    with Gateway(control_socket(options.socket, options.config)) as gateway:
        match options.action:
            case "list":
                _list(gateway, options)
            case "export":
                _export(gateway, options)
            case _:
                _in_bulk(gateway, options)
    return 0


def _parser() -> Parser:
    parser = command_parser("dead")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|replay|drop|export")
    listing = add_action(actions, "list", "list dead messages", "holdfast dead list --since 2h --reason exhausted")
    replaying = add_action(
        actions,
        "replay",
        "give dead messages a new life, with all of their retries",
        "holdfast dead replay --host hooks.example.com --since 2026-01-31T12:00:00Z",
    )
    dropping = add_action(actions, "drop", "drop dead messages for good", "holdfast dead drop --until 7d")
    export = add_action(
        actions,
        "export",
        "write dead messages to a file, with headers and bodies: nothing is redacted",
        "holdfast dead export dead.jsonl --host hooks.example.com",
    )
    export.add_argument("file", metavar="FILE", type=name, help="the file, made readable to you only; - for stdout")
    for action in (listing, replaying, dropping, export):
        _add_filters(action)
    for action in (listing, replaying, dropping):
        action.add_argument("--limit", metavar="N", type=positive, help="at most this many (default: all)")
    add_yes(dropping)
    for action in (listing, replaying, dropping, export):
        add_control(action)
    return parser


def _add_filters(parser: Parser) -> None:
    parser.add_argument("--host", metavar="HOST", type=name, help="only those to this host")
    parser.add_argument(
        "--since", metavar="TIME", type=when, help="that died then or later: RFC 3339, or 2h for 2 hours ago"
    )
    parser.add_argument("--until", metavar="TIME", type=when, help="that died before then")
    parser.add_argument("--reason", choices=[reason.value for reason in DeadReason], help="that died of this")


def filter_of(options: argparse.Namespace, now: datetime) -> dict[str, str]:
    """What the gateway is asked for; never what dies from now on."""
    wanted = {field: value for field in ("host", "reason") if (value := getattr(options, field))}
    if options.since is not None:
        wanted["since"] = spelled_out(resolved(options.since, now))
    return wanted | {"until": no_later(options.until, now)}


# -- replay and drop -------------------------------------------------------------------------------------------------


def _in_bulk(gateway: Gateway, options: argparse.Namespace) -> None:
    if options.action == "drop" and not options.yes and not any_given(options, _FILTERS):
        confirm(f"Drop all {count(gateway.get('/v1/status')['store']['dead'], 'dead message')}?")
    verb = "replayed" if options.action == "replay" else "dropped"
    body = filter_of(options, gateway.now())
    bulk = Bulk(f"/v1/dead/{options.action}", verb, "dead message", body, options.limit)
    carry_out(gateway, bulk, _total(gateway, options, options.limit), options.json)


def _total(gateway: Gateway, options: argparse.Namespace, limit: int | None) -> int | None:
    """How many it will be, where that is known beforehand and anyone looks."""
    if not bar_wanted() or any_given(options, _NARROW):
        return None
    try:
        there: int = (
            gateway.get(f"/v1/circuits/{segment(options.host)}")["dead"]
            if options.host
            else gateway.get("/v1/status")["store"]["dead"]
        )
    except Failure:  # a host that was forgotten may still have dead messages; any other trouble comes up again
        return None
    return there if limit is None else min(there, limit)


# -- export ----------------------------------------------------------------------------------------------------------


def _export(gateway: Gateway, options: argparse.Namespace) -> None:
    query = urlencode(filter_of(options, gateway.now()), errors="surrogateescape")
    lines = gateway.lines(f"/v1/dead/export?{query}")
    if options.file == exporting.STDOUT:
        exporting.write_out(lines)
        return
    number, size = exporting.write_file(options.file, lines, _total(gateway, options, None))
    if options.json:
        print(json.dumps({"exported": number, "bytes": size, "file": options.file}))
    else:
        print(clean(f"{count(number, 'dead message')} exported to {options.file} ({human_size(size)})"))


# -- list ------------------------------------------------------------------------------------------------------------


def _list(gateway: Gateway, options: argparse.Namespace) -> None:
    """In pages of the message list, without bodies, so that a reader may take its time: a stream would be cut off."""
    table = Table(_HEADINGS, right=("RETRIES",))
    found = False
    for page in _pages(gateway, options):
        found = True
        lines = map(json.dumps, page) if options.json else table.lines(map(partial(row, now=gateway.now()), page))
        print("\n".join(lines), flush=True)
    if not found and not options.json:
        print("no such dead messages" if any_given(options, _FILTERS) else "no dead messages")


def _pages(gateway: Gateway, options: argparse.Namespace) -> Iterator[list[Document]]:
    select, left = filter_of(options, gateway.now()), options.limit
    for page in gateway.pages("messages", {"state": "dead", "host": options.host}):
        matching = [message for message in page if is_meant(message, select)][:left]
        if matching:
            yield matching
        if left is not None:
            left -= len(matching)
            if not left:
                return


def is_meant(message: Document, select: dict[str, str]) -> bool:
    """Whether replay and drop would take it too."""
    died = parse_moment(message["finished_at"])
    return (
        select.get("reason") in (None, message["dead_reason"])
        and ("since" not in select or died >= parse_moment(select["since"]))
        and died < parse_moment(select["until"])
    )


def row(message: Document, now: datetime) -> list[str]:
    last = message["attempts"][-1] if message["attempts"] else None
    return [
        message["id"],
        relative(message["finished_at"], now),
        message["dead_reason"],
        str(message["retry"]),
        str(last["error"] or last["status"]) if last else "-",
        message["host"],
    ]
