"""`holdfast dead`: list, replay, drop and export dead messages."""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlencode

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
from holdfast.cli.command_error import CommandError, clean
from holdfast.cli.control_client import ControlClient, Document
from holdfast.cli.output import (
    ProgressBar,
    TextTable,
    count,
    human_size,
    list_lines,
    relative,
    resolved,
    timestamp,
)
from holdfast.core.message import DeadReason
from holdfast.store.private_files import CannotWrite, written_beside

_HEADINGS = ("ID", "DIED", "REASON", "RETRIES", "LAST", "HOST")
_FILTERS = ("host", "since", "until", "reason")
_UNCOUNTED_FILTERS = ("since", "until", "reason")
_STDOUT = "-"


def dead(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    with ControlClient(options) as client:
        options.act(client, options)
    return 0


def _parser() -> Parser:
    parser = command_parser("dead")
    actions = parser.add_subparsers(required=True, metavar="list|replay|drop|export")
    listing = add_action(actions, "list", "list dead messages", "holdfast dead list --since 2h --reason exhausted")
    listing.set_defaults(act=_list)
    replaying = add_action(
        actions,
        "replay",
        "replay dead messages, with all of their retries",
        "holdfast dead replay --host hooks.example.com --since 2026-01-31T12:00:00Z",
    )
    replaying.set_defaults(act=_replay)
    dropping = add_action(actions, "drop", "drop dead messages for good", "holdfast dead drop --until 7d")
    dropping.set_defaults(act=_drop)
    exporting = add_action(
        actions,
        "export",
        "write dead messages to a file, with headers and bodies, unredacted",
        "holdfast dead export dead.jsonl --host hooks.example.com",
    )
    exporting.set_defaults(act=_export, limit=None)
    exporting.add_argument("file", metavar="FILE", type=non_empty, help="the file, readable by you only; - for stdout")
    for action in (listing, replaying, dropping, exporting):
        _add_filters(action)
        if action is not exporting:
            add_limit(action)
        if action is dropping:
            add_yes(action)
        add_control(action)
    return parser


def _add_filters(parser: Parser) -> None:
    since = "only those that died then or later: RFC 3339, or 2h for 2 hours ago"
    parser.add_argument("--host", metavar="HOST", type=non_empty, help="only those to this host")
    parser.add_argument("--since", metavar="TIME", type=when, help=since)
    parser.add_argument("--until", metavar="TIME", type=when, help="only those that died before then")
    parser.add_argument("--reason", choices=[reason.value for reason in DeadReason], help="only those that died of it")


def dead_filter(options: argparse.Namespace, now: datetime) -> dict[str, str]:
    """The filter of the request. It never matches messages that die from now on."""
    wanted = {field: value for field in ("host", "reason") if (value := getattr(options, field))}
    if options.since is not None:
        wanted["since"] = timestamp(resolved(options.since, now))
    return wanted | {"until": no_later(options.until, now)}


def _known_total(client: ControlClient, options: argparse.Namespace) -> int | None:
    if any_given(options, _UNCOUNTED_FILTERS):
        return None
    return known_total(client, options.host, ["dead"], options.limit)


# -- replay and drop -------------------------------------------------------------------------------------------------


def _replay(client: ControlClient, options: argparse.Namespace) -> None:
    bulk = Bulk("/v1/dead/replay", "replayed", "dead message", dead_filter(options, client.now()), options.limit)
    run_bulk(client, bulk, _known_total(client, options), options.json)


def _drop(client: ControlClient, options: argparse.Namespace) -> None:
    if not options.yes and not any_given(options, _FILTERS):
        confirm(f"Drop all {count(client.get('/v1/status')['store']['dead'], 'dead message')}?")
    bulk = Bulk("/v1/dead/drop", "dropped", "dead message", dead_filter(options, client.now()), options.limit)
    run_bulk(client, bulk, _known_total(client, options), options.json)


# -- export ----------------------------------------------------------------------------------------------------------


def _export(client: ControlClient, options: argparse.Namespace) -> None:
    query = urlencode(dead_filter(options, client.now()), errors="surrogateescape")
    lines = client.lines(f"/v1/dead/export?{query}")
    if options.file == _STDOUT:
        for line in lines:
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        return
    number, total = 0, _known_total(client, options)
    try:
        # The old content of the file stays until all of the new one is on disk.
        with written_beside(options.file) as file, ProgressBar("exported", total) as bar:
            for number, line in enumerate(lines, 1):
                file.write(line + b"\n")
                if not number % 100:
                    bar.show(number)
            size = file.tell()
    except CannotWrite as error:
        raise CommandError(str(error)) from error
    if options.json:
        print(json.dumps({"exported": number, "bytes": size, "file": options.file}))
    else:
        print(clean(f"{count(number, 'dead message')} exported to {options.file} ({human_size(size)})"))


# -- list ------------------------------------------------------------------------------------------------------------


def _list(client: ControlClient, options: argparse.Namespace) -> None:
    # By pages of the message list: the stream of the export is cut off if its reader pauses.
    none_found = "no such dead messages" if any_given(options, _FILTERS) else "no dead messages"
    table = TextTable(_HEADINGS, right=("RETRIES",))
    pages = _matching_pages(client, options)
    for lines in list_lines(pages, table, dead_row, client.now, as_json=options.json, none_found=none_found):
        print("\n".join(lines), flush=True)


def _matching_pages(client: ControlClient, options: argparse.Namespace) -> Iterator[list[Document]]:
    wanted, left = dead_filter(options, client.now()), options.limit
    for page in client.pages("messages", {"state": "dead", "host": options.host}):
        matching = [message for message in page if matches(message, wanted)][:left]
        if matching:
            yield matching
        if left is not None:
            left -= len(matching)
            if not left:
                return


def matches(message: Document, wanted: dict[str, str]) -> bool:
    """Applies the filter as replay and drop do."""
    died = datetime.fromisoformat(message["finished_at"])
    return (
        wanted.get("reason") in (None, message["dead_reason"])
        and ("since" not in wanted or died >= datetime.fromisoformat(wanted["since"]))
        and died < datetime.fromisoformat(wanted["until"])
    )


def dead_row(message: Document, now: datetime) -> list[str]:
    last = message["attempts"][-1] if message["attempts"] else None
    return [
        message["id"],
        relative(message["finished_at"], now),
        message["dead_reason"],
        str(message["retry"]),
        str(last["error"] or last["status"]) if last else "-",
        message["host"],
    ]
