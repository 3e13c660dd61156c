"""A PostgreSQL server of the benchmarks: with fsync, in the temporary folder, which has to be on a real disk."""

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from tests.support.postgres import OwnServer

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""As anyone would set them on a small machine; everything else that matters here is at its default."""


class Database:
    """One database of a server that is this benchmark's alone."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server
        self.url = server.fresh_database()
        self.filled = 0
        """Bytes that its messages had before anything else happened here."""

    @property
    def postmaster(self) -> int:
        """The process that all others of the server descend from."""
        return int((self._server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, options="-c search_path=holdfast") as connection:
            return connection.execute(question.encode(), values).fetchall()

    def do(self, statement: str, *values: object) -> None:
        with psycopg.connect(self.url, autocommit=True, options="-c search_path=holdfast") as connection:
            connection.execute(statement.encode(), values)

    def explained(self, statement: str, *values: object) -> Mapping[str, Any]:
        """How the server carried out a statement that is undone again."""
        with psycopg.connect(self.url, options="-c search_path=holdfast") as connection:
            asking = psycopg.ClientCursor(connection)
            asking.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}".encode(), values)
            row = asking.fetchone()
            connection.rollback()
        assert row is not None
        return dict(row[0][0])

    def size(self, table: str) -> int:
        """Bytes, indexes included."""
        return int(self.ask("SELECT pg_total_relation_size(%s)", table)[0][0])

    def wal(self) -> int:
        """Bytes that were ever written ahead."""
        return int(self.ask("SELECT pg_current_wal_lsn() - '0/0'")[0][0])

    def drop(self) -> None:
        self._server.drop(self.url)


class Databases:
    """Of one server, which is started when the first one is asked for."""

    def __init__(self) -> None:
        self._server: OwnServer | None = None
        self._filled: dict[str, Database] = {}

    def new(self) -> Database:
        if self._server is None:
            self._server = _start()
        return Database(self._server)

    def filled(self, name: str, fill: Callable[[str], None]) -> Database:
        """A database of that name; for the first to ask it is filled by its URL."""
        if name not in self._filled:
            made = self._filled[name] = self.new()
            fill(made.url)
            made.filled = made.size("messages")
        return self._filled[name]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def _start() -> OwnServer:
    server = OwnServer()
    for name, value in SETTINGS.items():
        server.administer(f"ALTER SYSTEM SET {name} = '{value}'")
    server.stop()
    server.start()
    return server
