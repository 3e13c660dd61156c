"""What the commands do to a database, while a fleet works on it or none does: check and mend, export and import."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.core.errors import StoreUnusable
from holdfast.core.store_rules import StoreRules
from holdfast.store.maintenance import Finding, Imported, Repaired
from holdfast.store.postgres import fsck, migration, ownership, schema
from holdfast.store.postgres.connection import Connection, connected
from holdfast.store.postgres.export import export_lines
from holdfast.store.postgres.restore import take
from holdfast.store.postgres.rows import Terms
from holdfast.store.postgres.shares import FOLDED


@dataclass(frozen=True, slots=True)
class Database:
    """One that is connected to, until its connection is closed."""

    _connection: Connection
    _terms: Terms

    def check(self) -> Iterator[Finding]:
        return fsck.Audit(self._connection, self._terms).run()

    def repair(self) -> Repaired:
        return fsck.repair(self._connection, self._terms)

    def export(self, left_out: Callable[[Finding], None]) -> Iterator[bytes]:
        return export_lines(self._connection, left_out)

    def take(self, lines: Iterable[bytes], bad_line: Callable[[int, str], None]) -> Imported:
        return take(self._connection, self._terms, lines, bad_line)


@contextmanager
def open_database(url: str, max_size: int, rules: StoreRules, *, create: bool = False) -> Iterator[Database]:
    """Raises StoreUnusable without tables, unless they may be made, and StoreUnreachable if it can't be reached."""
    with connected(url) as connection:
        if not create and not migration.has_tables(connection):
            raise StoreUnusable(f"there is no store in {schema.shown(url)}")
        migration.bring_up_to_date(connection)
        connection.autocommit = False
        now = ownership.fleet_time(connection)
        yield Database(connection, Terms(rules, 0, FOLDED, now, max_size))
