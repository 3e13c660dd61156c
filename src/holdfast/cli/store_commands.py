"""Commands on a store that no gateway uses, or on a database while replicas use it.

`holdfast fsck`, `export`, `import`, `compact`, `handoff` and `migrate`.
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.arguments import add_config, add_json, command_parser, load_config
from holdfast.cli.command_error import MISUSED, REFUSED, UNUSABLE, CommandError, clean, warn
from holdfast.cli.output import ProgressBar, count, human_size, wall_clock
from holdfast.config import Config, ConfigError, DatabaseUrl
from holdfast.core.errors import CommitFailed, HoldfastError, StoreUnusable
from holdfast.store.maintenance import Finding, Maintained, NotAnExport, Repaired, check_header
from holdfast.store.private_files import written_beside
from holdfast.store.transfer import Transferred

if TYPE_CHECKING:
    from holdfast.store.offline.offline_store import OfflineStore

DISK_FAILED = 4

_STANDARD_STREAM = "-"
_PLURALS = {"circuit": "circuits", "message": "messages", "delivered": "delivered", "key": "keys"}


def _parser(name: str) -> argparse.ArgumentParser:
    parser = command_parser(name)
    add_json(parser)
    add_config(parser)
    return parser


# -- fsck ------------------------------------------------------------------------------------------------------------


def fsck(arguments: list[str]) -> int:
    parser = _parser("fsck")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="rebuild indexes from the messages, and move unreadable records to a file beside the store;"
        " in a database, correct the counts",
    )
    options = parser.parse_args(arguments)
    with _opened(options) as store:
        found = _print_findings(store, options.json)
        if options.repair and found:
            _print_repaired(store.repair(), options.json)
            found = _print_findings(store, options.json)
    if not options.json:
        advice = "left after the repair" if options.repair else "found; holdfast fsck --repair repairs what it can"
        print(f"{count(found, 'problem')} {advice}" if found else "the store is clean")
    return 1 if found else 0


def _print_findings(store: Maintained, as_json: bool) -> int:
    found = 0
    for found, finding in enumerate(store.check(), 1):  # noqa: B007
        print(json.dumps(finding._asdict()) if as_json else clean(f"{finding.kind} {finding.id}: {finding.what}"))
    return found


def _print_repaired(done: Repaired, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"repaired": {**asdict(done), "file": str(done.file) if done.file else None}}))
        return
    lines = {
        f"moved {count(done.set_aside, 'row')} to {done.file}": done.set_aside,
        f"rebuilt the queue places of {count(done.places, 'message')}": done.places,
        f"added {count(done.entries, 'row')} to the indexes": done.entries,
        f"reset {count(done.circuits, 'circuit')}": done.circuits,
        f"listed {count(done.listed, 'delivered record')} again": done.listed,
        f"corrected {count(done.summaries, 'row')} of the circuits' summaries": done.summaries,
        f"counted the shares of {count(done.shares, 'host')} again": done.shares,
    }
    print("\n".join(clean(line) for line, number in lines.items() if number))


# -- export, import, compact -----------------------------------------------------------------------------------------


def export(arguments: list[str]) -> int:
    parser = _parser("export")
    parser.add_argument("file", metavar="FILE", help="where to write it, readable by you only; - for stdout")
    options = parser.parse_args(arguments)
    to_stdout = options.file == _STANDARD_STREAM
    left_out: list[Finding] = []
    number = 0
    with _opened(options) as store, ExitStack() as stack:
        lines = store.export(left_out.append)
        file = sys.stdout.buffer if to_stdout else stack.enter_context(written_beside(options.file))
        for number, line in enumerate(lines, 1):  # noqa: B007
            file.write(line)
    for finding in left_out:
        warn(f"left out: {finding.kind} {finding.id}: {finding.what}")
    document = {"lines": number, "left_out": len(left_out)}
    summary = f"{count(number, 'line')} written, {count(len(left_out), 'record')} left out"
    print(json.dumps(document) if options.json else summary, file=sys.stderr if to_stdout else sys.stdout)
    return 1 if left_out else 0


def import_(arguments: list[str]) -> int:
    parser = _parser("import")
    parser.add_argument("file", metavar="FILE", help="an export; - for stdin")
    options = parser.parse_args(arguments)

    def bad_line(number: int, what: str) -> None:
        warn(f"{options.file}: line {number}: {what}")

    with _exported_lines(options.file) as lines, _opened(options, create=True) as store:
        done = store.take(lines, bad_line)
    document = {**asdict(done), "added": dict(done.added), "skipped": dict(done.skipped)}
    kinds = ", ".join(f"{done.added[kind]:,} {name}" for kind, name in _PLURALS.items())
    text = f"imported {kinds}; {done.skipped.total():,} were there already; {count(done.bad, 'bad line')}"
    print(json.dumps(document) if options.json else text)
    if not done.complete:
        warn(f"{options.file}: lines are missing; the file was cut off or changed")
    return 0 if done.complete and not done.bad else 1


@contextmanager
def _exported_lines(name: str) -> Iterator[Iterator[bytes]]:
    """Yields the lines after the header, which is checked before a store is opened or created."""
    with ExitStack() as stack:
        try:
            file = sys.stdin.buffer if name == _STANDARD_STREAM else stack.enter_context(Path(name).open("rb"))
            lines = iter(file)
            check_header(next(lines, b""))
        except OSError as error:
            raise CommandError(f"{name} can't be read: {error.strerror}") from error
        except NotAnExport as error:
            raise CommandError(f"{name}: {error}") from error
        yield lines


def compact(arguments: list[str]) -> int:
    options = _parser("compact").parse_args(arguments)
    config = load_config(options.config)
    if config.store.url is not None:
        reason = "store.url is set, and PostgreSQL frees space by itself (autovacuum)"
        raise CommandError(f"compact is for the embedded store; {reason}", status=MISUSED)
    with _store_errors(), _open_embedded(config) as store:
        before, after = store.compact()
    document = {"before": before, "after": after}
    print(json.dumps(document) if options.json else f"{human_size(before)} before, {human_size(after)} after")
    return 0


# -- handoff ---------------------------------------------------------------------------------------------------------


def handoff(arguments: list[str]) -> int:
    parser = _parser("handoff")
    parser.add_argument(
        "--to",
        metavar="URL",
        help="the shared database (default: store.url of the config, which keeps the password out of the process list)",
    )
    options = parser.parse_args(arguments)
    config = load_config(options.config)
    url = _handoff_target(options.to, config)
    broken: list[str] = []

    def keep(table: str, key: str, what: str) -> None:
        broken.append(f"unreadable, so it stays: {table} {key}: {what}")

    with _store_errors(), _open_embedded(config) as store:
        _check_driver(url)
        before, moved = store.left, Transferred()
        try:
            with ProgressBar("moved", before) as bar:
                store.hand_off(url.whole, moved, bar.show, keep)
            for line in broken:
                warn(line)
        finally:
            left = store.left
            # Not moved's own count: an interrupt may come between a move and its count.
            _print_moved(before - left, moved, left, url, options.json)
    return REFUSED if left else 0


def _handoff_target(to: str | None, config: Config) -> DatabaseUrl:
    from holdfast.config.faults import BadValue, ConfigFault
    from holdfast.config.hosts import database_url

    if to is not None:
        try:
            return database_url(to)
        except BadValue as error:
            raise CommandError(
                *(str(ConfigFault("--to", *reason)) for reason in error.reasons), status=MISUSED
            ) from None
    if config.store.url is None:
        raise CommandError("handoff needs --to, or store.url in the config", status=MISUSED)
    return config.store.url


def _print_moved(number: int, moved: Transferred, left: int, url: DatabaseUrl, as_json: bool) -> None:
    if as_json:
        known = {"already_there": moved.known, "duplicates": moved.duplicates}
        print(json.dumps({"moved": number, "dead": moved.dead, **known, "left": left}), flush=True)
        return
    parts = [f"{count(number, 'message')} moved to {url}, {moved.dead:,} of them dead"]
    if moved.known:
        parts.append(f"{moved.known:,} were there already")
    if moved.duplicates:
        parts.append(f"{moved.duplicates:,} are there under another id with the same Idempotency-Key")
    print("; ".join([*parts, f"{left:,} left here"]), flush=True)


# -- migrate ---------------------------------------------------------------------------------------------------------


def migrate(arguments: list[str]) -> int:
    """Updates the tables of a shared database.

    `holdfast run` makes additive changes by itself. This command also removes what only older versions use, so it is
    for after the last replica of an older version has stopped.
    """
    options = _parser("migrate").parse_args(arguments)
    url = load_config(options.config).store.url
    if url is None:
        raise CommandError("migrate needs store.url; holdfast run migrates an embedded store", status=MISUSED)
    with _store_errors():
        _check_driver(url)
        from holdfast.store.postgres import migration  # needs the driver, which is an extra

        before, after = migration.migrate(url.whole)
    if options.json:
        print(json.dumps({"before": before, "after": after}))
    elif before == after:
        print(f"{url}: version {after}, nothing to do")
    else:
        print(f"{url}: version {before} before, {after} now")
    return 0


# -- the store -------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(options: argparse.Namespace, *, create: bool = False) -> Iterator[Maintained]:
    """Opens the config's store. An embedded one is locked; a database is shared with its replicas."""
    config = load_config(options.config)
    url = config.store.url
    with _store_errors(), ExitStack() as stack:
        if url is None:
            yield stack.enter_context(_open_embedded(config, create=create))
        else:
            _check_driver(url)
            from holdfast.store.offline.offline_store import open_database

            rules = config.store_rules(_now())
            yield stack.enter_context(open_database(url.whole, config.store.max_size, rules, create=create))


def _open_embedded(config: Config, *, create: bool = False) -> "OfflineStore":
    # After the config: the store's imports take longer than finding a fault.
    from holdfast.store.offline.offline_store import open_store

    return open_store(config.store.path, config.store.max_size, config.store_rules(_now()), create=create)


def _check_driver(url: DatabaseUrl) -> None:
    # It imports much more than databases need, and embedded stores need none of it.
    from holdfast.process.credentials import judge_database

    judge_database(url)


class _WarningLines(logging.Handler):
    """Prints the gateway's log warnings, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, object] = getattr(record, "fields", {})
        warn(": ".join([record.getMessage(), *(str(fields[name]) for name in ("path", "detail") if name in fields)]))


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turns errors of a store into a CommandError, and prints its log warnings."""
    logger, warnings = logging.getLogger("holdfast"), _WarningLines(logging.WARNING)
    logger.addHandler(warnings)
    try:
        yield
    except ConfigError as error:
        raise CommandError(*map(str, error.faults), status=MISUSED) from error
    except StoreUnusable as error:
        raise CommandError(str(error), status=UNUSABLE) from error
    except CommitFailed as error:
        raise CommandError(f"the disk failed: {error}", status=DISK_FAILED) from error
    except HoldfastError as error:
        raise CommandError(str(error)) from error
    finally:
        logger.removeHandler(warnings)


def _now() -> int:
    return round(wall_clock().timestamp() * 1000)
