"""`holdfast messages retry` and `drop`: one message due now or gone, or many of them gone."""

import argparse
import json
import sys
from datetime import datetime

from holdfast.cli.bulk import Bulk, carry_out
from holdfast.cli.failure import MISUSED, Failure
from holdfast.cli.filters import add_yes, any_given, confirm, no_later, when
from holdfast.cli.gateway import Document, Gateway, segment
from holdfast.cli.parsing import Parser, name, positive
from holdfast.cli.progress import bar_wanted
from holdfast.cli.text import clean
from holdfast.core.message import MessageState

_DROPPABLE = (MessageState.QUEUED, MessageState.RETRYING, MessageState.HELD, MessageState.DEAD)
_FILTERS = ("host", "before", "state")


def retry(gateway: Gateway, options: argparse.Namespace) -> None:
    answer = gateway.post(f"/v1/messages/{segment(options.id)}/retry", {})
    print(json.dumps(answer) if options.json else clean(render_retry(answer)))


def render_retry(answer: Document) -> str:
    message = answer["message"]
    what = "has a new life, with all of its retries" if answer["result"] == "replayed" else "is due now"
    # Due or not, a circuit that is not enabled lets nothing through.
    but = f", but: {message['why']}" if message["state"] == MessageState.HELD else ""
    return f"{message['id']} {what}{but}"


def add_drop(parser: Parser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", type=name, help="this one; else those that the filters mean")
    parser.add_argument("--host", metavar="HOST", type=name, help="those to this host")
    parser.add_argument(
        "--before", metavar="TIME", type=when, help="accepted before then: RFC 3339, or 2h for 2 hours ago"
    )
    parser.add_argument("--state", choices=[state.value for state in _DROPPABLE], help="those in this state")
    parser.add_argument("--limit", metavar="N", type=positive, help="at most this many (default: all)")
    add_yes(parser)


def drop(gateway: Gateway, options: argparse.Namespace) -> None:
    if options.id is None:
        _drop_many(gateway, options)
        return
    if any_given(options, (*_FILTERS, "limit")):
        raise Failure("an ID goes alone, without filters", status=MISUSED)
    answer = gateway.delete(f"/v1/messages/{segment(options.id)}")
    print(json.dumps(answer) if options.json else clean(f"{options.id} was dropped"))


def _drop_many(gateway: Gateway, options: argparse.Namespace) -> None:
    if not options.yes and not any_given(options, _FILTERS):
        if not sys.stdin.isatty():
            # Not by a script whose variable for the ID was empty.
            raise Failure("name an ID or a filter; --yes alone drops all that waits or is dead", status=MISUSED)
        store = gateway.get("/v1/status")["store"]
        confirm(f"Drop everything: {store['waiting']:,} waiting and {store['dead']:,} dead messages?")
    bulk = Bulk("/v1/messages/drop", "dropped", "message", filter_of(options, gateway.now()), options.limit)
    carry_out(gateway, bulk, _total(gateway, options), options.json)


def filter_of(options: argparse.Namespace, now: datetime) -> dict[str, str]:
    """What the gateway is asked for; never what is accepted from now on."""
    wanted = {field: value for field in ("host", "state") if (value := getattr(options, field))}
    return wanted | {"before": no_later(options.before, now)}


def _total(gateway: Gateway, options: argparse.Namespace) -> int | None:
    """How many it will be, where that is known beforehand and anyone looks."""
    if not bar_wanted() or options.before is not None or options.state not in (None, MessageState.DEAD):
        return None
    try:
        there = gateway.get(f"/v1/circuits/{segment(options.host)}" if options.host else "/v1/status")
    except Failure:  # any trouble comes up again
        return None
    numbers = there if options.host else there["store"]
    total: int = numbers["dead"] + (0 if options.state else numbers["waiting"])
    return total if options.limit is None else min(total, options.limit)
