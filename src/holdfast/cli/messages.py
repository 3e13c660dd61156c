"""`holdfast messages` (list, show, retry, drop) and `holdfast why`."""

import argparse
import json
import sys
from datetime import datetime
from typing import Any

from holdfast.cli.arguments import Parser, add_action, add_control, command_parser, non_empty
from holdfast.cli.bulk_actions import (
    Bulk,
    add_limit,
    add_yes,
    any_given,
    confirm,
    known_total,
    no_later,
    run_bulk,
    when,
)
from holdfast.cli.command_error import MISUSED, CommandError, clean
from holdfast.cli.control_client import ControlClient, Document, segment
from holdfast.cli.output import (
    TextTable,
    absolute,
    colour_wanted,
    facts,
    format_duration,
    human_size,
    list_lines,
    painted,
    relative,
    shortened,
)
from holdfast.core.message import MessageState

_HEADINGS = ("ID", "STATE", "ACCEPTED", "RETRIES", "NEXT", "HOST")
_ATTEMPT_HEADINGS = ("#", "KIND", "AT", "TOOK", "RESULT", "FAULT", "ADDRESS", "DETAIL")
_ANSWER_LENGTH = 160
_DEAD_REASONS = {
    "exhausted": "its last retry failed",
    "expired": "its circuit let nothing through for too long",
}
_DROPPABLE = (MessageState.QUEUED, MessageState.RETRYING, MessageState.HELD, MessageState.DEAD)
_DROP_FILTERS = ("host", "before", "state")
_ID = "the id from the answer of ingest"


def messages(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    with ControlClient(options) as client:
        options.act(client, options)
    return 0


def _parser() -> Parser:
    parser = command_parser("messages")
    actions = parser.add_subparsers(required=True, metavar="list|show|retry|drop")
    listing = add_action(actions, "list", "list messages", "holdfast messages list --state dead --limit 20")
    states = [state.value for state in MessageState]
    listing.add_argument(
        "--state", choices=states, metavar="STATE", help=f"only those in this state: {', '.join(states)}"
    )
    listing.add_argument("--host", metavar="HOST", type=non_empty, help="only those to this host")
    add_limit(listing)
    showing = add_action(
        actions,
        "show",
        "show one message, its attempts, and what comes next",
        "holdfast messages show msg_019b76da9c8000000000000000000001",
    )
    showing.add_argument("id", metavar="ID", type=non_empty, help=_ID)
    retrying = add_action(
        actions,
        "retry",
        "make a waiting message due now, or replay a dead one",
        "holdfast messages retry msg_019b76da9c8000000000000000000001",
    )
    retrying.add_argument("id", metavar="ID", type=non_empty, help=_ID)
    dropping = add_action(
        actions,
        "drop",
        "drop one message for good, or many",
        "holdfast messages drop msg_019b76da9c8000000000000000000001",
        "holdfast messages drop --host hooks.example.com --before 2h --state held",
    )
    _add_drop_options(dropping)
    for action, act in {listing: _list, showing: _show, retrying: _retry, dropping: _drop}.items():
        action.set_defaults(act=act)
        add_control(action)
    return parser


def why(arguments: list[str]) -> int:
    parser = command_parser("why")
    parser.add_argument("id", metavar="ID", type=non_empty, help=_ID)
    add_control(parser)
    options = parser.parse_args(arguments)
    with ControlClient(options) as client:
        message = client.get(f"/v1/messages/{segment(options.id)}")
    document = {field: message[field] for field in ("id", "state", "why")}
    print(json.dumps(document) if options.json else clean(document["why"]))
    return 0


# -- list ------------------------------------------------------------------------------------------------------------


def _list(client: ControlClient, options: argparse.Namespace) -> None:
    pages = client.pages("messages", {"state": options.state, "host": options.host}, options.limit)
    table = TextTable(_HEADINGS, right=("RETRIES",), colour=colour_wanted())
    none_found = no_messages(options.state, options.host)
    for lines in list_lines(pages, table, message_row, client.now, as_json=options.json, none_found=none_found):
        print("\n".join(lines), flush=True)


def no_messages(state: str | None, host: str | None) -> str:
    if state is None and host is None:
        return "no messages yet"
    kind = f"{state.replace('_', ' ')} messages" if state else "messages"
    return f"no {kind} for {host}" if host else f"no {kind}"


def message_row(message: Document, now: datetime) -> list[str]:
    return [
        message["id"],
        message["state"],
        relative(message["accepted_at"], now),
        str(message["retry"]),
        message["dead_reason"] or _next(message, now),
        message["host"],
    ]


def _next(message: Document, now: datetime) -> str:
    # A held message keeps its due time, but waits for its circuit.
    return "circuit" if message["state"] == MessageState.HELD else relative(message["next_attempt_at"], now)


# -- show ------------------------------------------------------------------------------------------------------------


def _show(client: ControlClient, options: argparse.Namespace) -> None:
    document = client.get(f"/v1/messages/{segment(options.id)}")
    lines = [json.dumps(document)] if options.json else message_details(document, client.now(), colour_wanted())
    print("\n".join(lines))


def message_details(message: Document, now: datetime, colour: bool = False) -> list[str]:
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
        *facts([("next", next_step(message, now))]),
    ]


def _attempts(attempts: list[Document], now: datetime) -> list[str]:
    if not attempts:
        return ["no failed attempts"]
    table = TextTable(_ATTEMPT_HEADINGS, right=("#", "TOOK"))
    return table.lines(_attempt_row(each, now) for each in attempts)


def _attempt_row(attempt: Document, now: datetime) -> list[str]:
    return [
        str(attempt["number"]),
        attempt["kind"],
        relative(attempt["at"], now),
        format_duration(attempt["duration"]),
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
        # --json has all of it; its beginning is enough to tell one error page from another.
        parts.append("answer: " + shortened(" ".join(attempt["answer"].split()), _ANSWER_LENGTH))
    return "; ".join(filter(None, parts))


def next_step(message: Document, now: datetime) -> str:
    state, due = message["state"], message["next_attempt_at"]
    if state == MessageState.DELIVERED:
        return "nothing, it was delivered"
    if state == MessageState.DEAD:
        why = _DEAD_REASONS.get(message["dead_reason"], message["dead_reason"])
        return f"nothing, {why}; holdfast messages retry {message['id']} replays it"
    if state == MessageState.IN_FLIGHT:
        return "an attempt is in flight"
    if state == MessageState.HELD:
        return f"it waits for its circuit, see: holdfast circuits {message['host']}"
    which = f"retry {message['retry'] + 1}" if state == MessageState.RETRYING else "the first attempt"
    if due is None:
        return f"{which}, as soon as its host has room"
    return (
        f"{which} {relative(due, now)}" if datetime.fromisoformat(due) > now else f"{which}, due {relative(due, now)}"
    )


# -- retry and drop --------------------------------------------------------------------------------------------------


def _retry(client: ControlClient, options: argparse.Namespace) -> None:
    answer = client.post(f"/v1/messages/{segment(options.id)}/retry", {})
    print(json.dumps(answer) if options.json else clean(retry_text(answer)))


def retry_text(answer: Document) -> str:
    message = answer["message"]
    what = "is replayed, with all of its retries" if answer["result"] == "replayed" else "is due now"
    # A circuit that is not enabled lets no message through, due or not.
    but = f", but: {message['why']}" if message["state"] == MessageState.HELD else ""
    return f"{message['id']} {what}{but}"


def _add_drop_options(parser: Parser) -> None:
    before = "only those accepted before then: RFC 3339, or 2h for 2 hours ago"
    parser.add_argument("id", nargs="?", metavar="ID", type=non_empty, help="this one; else all that match the filters")
    parser.add_argument("--host", metavar="HOST", type=non_empty, help="only those to this host")
    parser.add_argument("--before", metavar="TIME", type=when, help=before)
    parser.add_argument("--state", choices=[state.value for state in _DROPPABLE], help="only those in this state")
    add_limit(parser)
    add_yes(parser)


def _drop(client: ControlClient, options: argparse.Namespace) -> None:
    if options.id is None:
        _drop_many(client, options)
        return
    if any_given(options, (*_DROP_FILTERS, "limit")):
        raise CommandError("an ID goes alone, without filters", status=MISUSED)
    answer = client.delete(f"/v1/messages/{segment(options.id)}")
    print(json.dumps(answer) if options.json else clean(f"{options.id} was dropped"))


def _drop_many(client: ControlClient, options: argparse.Namespace) -> None:
    if not options.yes and not any_given(options, _DROP_FILTERS):
        if not sys.stdin.isatty():
            # A script may have an unset variable for the ID.
            raise CommandError("name an ID or a filter; --yes alone drops all that waits or is dead", status=MISUSED)
        store = client.get("/v1/status")["store"]
        confirm(f"Drop everything: {store['waiting']:,} waiting and {store['dead']:,} dead messages?")
    bulk = Bulk("/v1/messages/drop", "dropped", "message", drop_filter(options, client.now()), options.limit)
    total = None
    if options.before is None and options.state in (None, MessageState.DEAD):
        total = known_total(client, options.host, ["dead"] if options.state else ["dead", "waiting"], options.limit)
    run_bulk(client, bulk, total, options.json)


def drop_filter(options: argparse.Namespace, now: datetime) -> dict[str, str]:
    """The filter of the request. It never matches messages that are accepted from now on."""
    wanted = {field: value for field in ("host", "state") if (value := getattr(options, field))}
    return wanted | {"before": no_later(options.before, now)}
