"""`holdfast handoff`: what waits and what is dead in a stopped store goes to a database that replicas share."""

import argparse
import json
import sys

from holdfast.cli.failure import MISUSED, REFUSED, Failure
from holdfast.cli.offline import faults_told, offline_parser, open_embedded
from holdfast.cli.progress import Bar
from holdfast.cli.settings import load_config
from holdfast.cli.text import clean, count
from holdfast.config import Config, DatabaseUrl
from holdfast.config.database import database_url
from holdfast.config.faults import BadValue, Fault
from holdfast.process.credentials import judge_database
from holdfast.store.offline.offline_store import OfflineStore, Transferred


def handoff(arguments: list[str]) -> int:
    parser = offline_parser("handoff")
    parser.add_argument(
        "--to",
        metavar="URL",
        help="the fleet's database (default: store.url of the config, where nobody sees its password in a list of"
        " processes)",
    )
    options = parser.parse_args(arguments)
    config = load_config(options.config)
    url = _target(options, config)
    with faults_told(), open_embedded(config) as store:
        judge_database(url)
        before, moved = store.left, Transferred()
        try:
            _empty(store, url, moved)
        finally:
            left = store.left
            # Not what was counted: it may have been interrupted between the deed and the count.
            _tell(before - left, moved, left, url, options.json)
    return REFUSED if left else 0


def _target(options: argparse.Namespace, config: Config) -> DatabaseUrl:
    if options.to is not None:
        try:
            return database_url(options.to)
        except BadValue as error:
            raise Failure(*(str(Fault("--to", *reason)) for reason in error.reasons), status=MISUSED) from None
    if config.store.url is None:
        raise Failure("handoff needs --to, or store.url in the config", status=MISUSED)
    return config.store.url


def _empty(store: OfflineStore, url: DatabaseUrl, moved: Transferred) -> None:
    broken: list[str] = []

    def keep(table: str, key: str, what: str) -> None:
        broken.append(f"it can't be read and stays: {table} {key}: {what}")

    with Bar("moved", store.left) as bar:
        store.empty(url.whole, moved, bar.show, keep)
    for line in broken:
        print(f"holdfast: {clean(line)}", file=sys.stderr)


def _tell(gone: int, moved: Transferred, left: int, url: DatabaseUrl, as_json: bool) -> None:
    if as_json:
        known = {"already_there": moved.known, "duplicates": moved.duplicates}
        print(json.dumps({"moved": gone, "dead": moved.dead, **known, "left": left}), flush=True)
        return
    words = [f"{count(gone, 'message')} moved to {url}, {moved.dead:,} of them dead"]
    if moved.known:
        words.append(f"{moved.known:,} were there already")
    if moved.duplicates:
        words.append(f"{moved.duplicates:,} are there under another id, which came with the same Idempotency-Key")
    words.append(f"{left:,} left here")
    print("; ".join(words), flush=True)
