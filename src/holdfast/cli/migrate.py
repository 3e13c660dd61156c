"""`holdfast migrate`: the tables of a database that replicas share become those of this version.

`holdfast run` makes by itself what only adds to them. This also removes what only older versions use, so it is for the
moment when the last replica of an older version is gone; or, before an update, to keep the steps apart from it.
"""

import json

from holdfast.cli.failure import MISUSED, UNUSABLE, Failure
from holdfast.cli.parsing import add_config, add_json, command_parser
from holdfast.cli.settings import load_config
from holdfast.config import ConfigError, DatabaseUrl
from holdfast.core.errors import StoreUnreachable, StoreUnusable
from holdfast.process.credentials import judge_database


def migrate(arguments: list[str]) -> int:
    parser = command_parser("migrate")
    add_json(parser)
    add_config(parser)
    options = parser.parse_args(arguments)
    url = load_config(options.config).store.url
    if url is None:
        raise Failure("migrate needs store.url; an embedded store is migrated by holdfast run", status=MISUSED)
    before, after = _migrate(url)
    if options.json:
        print(json.dumps({"before": before, "after": after}))
    elif before == after:
        print(f"{url}: version {after}, nothing to do")
    else:
        print(f"{url}: version {before} before, {after} now")
    return 0


def _migrate(url: DatabaseUrl) -> tuple[int, int]:
    try:
        judge_database(url)
        # It is an extra, and judged to be there.
        from holdfast.store.postgres.migration import migrate

        return migrate(url.whole)
    except ConfigError as error:
        raise Failure(*map(str, error.faults), status=MISUSED) from error
    except StoreUnusable as error:
        raise Failure(str(error), status=UNUSABLE) from error
    except StoreUnreachable as error:
        raise Failure(str(error)) from error
