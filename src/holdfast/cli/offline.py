"""`holdfast fsck`, `export`, `import` and `compact`: what is done to a store while no gateway has it, or to a database
while a fleet does.
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

from holdfast.cli.failure import MISUSED, UNUSABLE, Failure
from holdfast.cli.parsing import add_config, add_json, command_parser
from holdfast.cli.settings import load_config
from holdfast.cli.text import clean, count, human_size
from holdfast.cli.times import wall_clock
from holdfast.config import Config, ConfigError
from holdfast.core.errors import CommitFailed, HoldfastError, StoreUnusable
from holdfast.store.files import written_beside
from holdfast.store.maintenance import Maintained
from holdfast.store.offline.offline_store import (
    Finding,
    Imported,
    NotAnExport,
    OfflineStore,
    Repaired,
    check_header,
    open_database,
    open_store,
)

DISK_FAILED = 4

STANDARD = "-"
"""As FILE: the standard input or output."""

_PLURALS = {"circuit": "circuits", "message": "messages", "delivered": "delivered", "key": "keys"}


def fsck(arguments: list[str]) -> int:
    parser = offline_parser("fsck")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="rebuild indexes from the messages, and move what can't be read to a file beside the store; in a database"
        " set right what is counted",
    )
    options = parser.parse_args(arguments)
    with _opened(options) as store:
        found = _tell_findings(store, options.json)
        if options.repair and found:
            _tell_repaired(store.repair(), options.json)
            found = _tell_findings(store, options.json)
    if not options.json:
        print("the store is clean" if not found else _advice(found, options.repair))
    return 1 if found else 0


def export(arguments: list[str]) -> int:
    parser = offline_parser("export")
    parser.add_argument("file", metavar="FILE", help="where to write it, for the owner's eyes alone; - for stdout")
    options = parser.parse_args(arguments)
    left_out: list[Finding] = []
    with _opened(options) as store:
        lines = store.export(left_out.append)
        if options.file == STANDARD:
            number = _write(sys.stdout.buffer, lines)
        else:
            with written_beside(options.file) as file:
                number = _write(file, lines)
    for finding in left_out:
        print(f"holdfast: {clean(f'left out: {finding.kind} {finding.id}: {finding.what}')}", file=sys.stderr)
    document = {"lines": number, "left_out": len(left_out)}
    summary = f"{count(number, 'line')} written, {count(len(left_out), 'record')} left out"
    # On the standard output is the export itself.
    where = sys.stderr if options.file == STANDARD else sys.stdout
    print(json.dumps(document) if options.json else summary, file=where)
    return 1 if left_out else 0


def take(arguments: list[str]) -> int:
    parser = offline_parser("import")
    parser.add_argument("file", metavar="FILE", help="an export; - for stdin")
    options = parser.parse_args(arguments)

    def bad_line(number: int, what: str) -> None:
        print(f"holdfast: {clean(f'{options.file}: line {number}: {what}')}", file=sys.stderr)

    with _source(options.file) as lines, _opened(options, create=True) as store:
        done = store.take(lines, bad_line)
    document = {**asdict(done), "added": dict(done.added), "skipped": dict(done.skipped)}
    print(json.dumps(document) if options.json else _imported(done))
    if not done.complete:
        print(f"holdfast: {clean(options.file)}: lines are missing, the file was cut off or changed", file=sys.stderr)
    return 0 if done.complete and not done.bad else 1


def compact(arguments: list[str]) -> int:
    options = offline_parser("compact").parse_args(arguments)
    config = load_config(options.config)
    if config.store.url is not None:
        what = (
            "compact is for the embedded store, and store.url is set; PostgreSQL gives room back by itself (autovacuum)"
        )
        raise Failure(what, status=MISUSED)
    with faults_told(), open_embedded(config) as store:
        before, after = store.compact()
    document = {"before": before, "after": after}
    print(json.dumps(document) if options.json else f"{human_size(before)} before, {human_size(after)} after")
    return 0


# -- the store -------------------------------------------------------------------------------------------------------


def offline_parser(name: str) -> argparse.ArgumentParser:
    parser = command_parser(name)
    add_json(parser)
    add_config(parser)
    return parser


@contextmanager
def _opened(options: argparse.Namespace, *, create: bool = False) -> Iterator[Maintained]:
    """The config's store until the end: an embedded one is held, a database shared with its fleet."""
    config = load_config(options.config)
    url = config.store.url
    with faults_told(), ExitStack() as stack:
        if url is None:
            yield stack.enter_context(open_embedded(config, create=create))
        else:
            # It knows much more than databases, which no embedded store should wait for.
            from holdfast.process.credentials import judge_database

            judge_database(url)
            rules = config.store_rules(_now())
            yield stack.enter_context(open_database(url.whole, config.store.max_size, rules, create=create))


def open_embedded(config: Config, *, create: bool = False) -> OfflineStore:
    return open_store(config.store.path, config.store.max_size, config.store_rules(_now()), create=create)


class _Warnings(logging.Handler):
    """What a gateway would have in its log: a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, object] = getattr(record, "fields", {})
        words = [record.getMessage(), *(str(fields[name]) for name in ("path", "detail") if name in fields)]
        print(f"holdfast: {clean(': '.join(words))}", file=sys.stderr)


@contextmanager
def faults_told() -> Iterator[None]:
    """What goes wrong with a store ends the command with one line; what is odd about it is one too."""
    logger, warnings = logging.getLogger("holdfast"), _Warnings(logging.WARNING)
    logger.addHandler(warnings)
    try:
        yield
    except ConfigError as error:
        raise Failure(*map(str, error.faults), status=MISUSED) from error
    except StoreUnusable as error:
        raise Failure(str(error), status=UNUSABLE) from error
    except CommitFailed as error:
        raise Failure(f"the disk failed: {error}", status=DISK_FAILED) from error
    except HoldfastError as error:
        raise Failure(str(error)) from error
    finally:
        logger.removeHandler(warnings)


def _now() -> int:
    return round(wall_clock().timestamp() * 1000)


# -- files and words -------------------------------------------------------------------------------------------------


@contextmanager
def _source(name: str) -> Iterator[Iterator[bytes]]:
    """The lines after the header, which is checked before anything is opened or made."""
    with ExitStack() as stack:
        try:
            file = sys.stdin.buffer if name == STANDARD else stack.enter_context(Path(name).open("rb"))
            lines = iter(file)
            check_header(next(lines, b""))
        except OSError as error:
            raise Failure(f"{name} can't be read: {error.strerror}") from error
        except NotAnExport as error:
            raise Failure(f"{name}: {error}") from error
        yield lines


def _write(file: IO[bytes], lines: Iterator[bytes]) -> int:
    number = 0
    for line in lines:
        file.write(line)
        number += 1
    return number


def _tell_findings(store: Maintained, as_json: bool) -> int:
    found = 0
    for found, finding in enumerate(store.check(), 1):  # noqa: B007
        print(json.dumps(finding._asdict()) if as_json else clean(f"{finding.kind} {finding.id}: {finding.what}"))
    return found


def _tell_repaired(done: Repaired, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"repaired": {**asdict(done), "file": str(done.file) if done.file else None}}))
        return
    words = {
        f"set aside {count(done.set_aside, 'row')} in {done.file}": done.set_aside,
        f"found the places of {count(done.places, 'message')} anew": done.places,
        f"put {count(done.entries, 'row')} into the indexes": done.entries,
        f"began {count(done.circuits, 'circuit')} anew": done.circuits,
        f"listed {count(done.listed, 'delivered record')} anew": done.listed,
        f"corrected {count(done.summaries, 'row')} of the circuits' summaries": done.summaries,
        f"counted the shares of {count(done.shares, 'host')} anew": done.shares,
    }
    print("\n".join(clean(text) for text, number in words.items() if number))


def _advice(found: int, repaired: bool) -> str:
    if repaired:
        return f"{count(found, 'finding')} left after the repair"
    return f"{count(found, 'finding')}; holdfast fsck --repair mends what can be mended"


def _imported(done: Imported) -> str:
    kinds = [f"{done.added[kind]:,} {name}" for kind, name in _PLURALS.items()]
    return f"imported {', '.join(kinds)}; {done.skipped.total():,} were there already; {count(done.bad, 'bad line')}"
