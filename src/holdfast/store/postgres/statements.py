"""Statements of the hot path: each is a whole transaction, is prepared once a connection, and needs no thread.

The text names its values, each with its type: `%(ids)s::bytea[]`. The driver can execute it as it is, as a part of a
larger transaction. `run` sends the same through libpq: one write, one wait on the loop and one read, where the
driver's cursor blocks a thread, and writes and polls for each statement.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from struct import Struct
from typing import Any

import trio
from psycopg import errors, pq

from holdfast.store.postgres import arrays

_VALUE = re.compile(r"%\((\w+)\)s::(\w+(?:\[\])?)")
_BIGINT = Struct("!q")
_READERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value == b"\x01",
    17: bytes,
    20: lambda value: _BIGINT.unpack(value)[0],
    21: lambda value: int.from_bytes(value, "big", signed=True),
    23: lambda value: int.from_bytes(value, "big", signed=True),
}
"""By the number of the type: boolean, bytea, bigint, smallint and integer."""


class Statement:
    def __init__(self, text: str) -> None:
        self.text = text
        self._types: dict[str, str] = dict(_VALUE.findall(text))
        self._names = list(self._types)
        self._numbered = _VALUE.sub(lambda found: f"${self._names.index(found[1]) + 1}::{found[2]}", text).encode()
        self._name = sha256(self._numbered).hexdigest()[:16].encode()
        self._formats = [pq.Format.BINARY] * len(self._names)

    def prepare(self, connection: pq.abc.PGconn) -> None:
        """Have the server know it. Waits for the answer."""
        result = connection.prepare(self._name, self._numbered)
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)

    async def run(self, connection: pq.abc.PGconn, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Carry it out where it was prepared, and wait for the rows."""
        given = [arrays.encode(kind, values[name]) for name, kind in self._types.items()]
        connection.send_query_prepared(self._name, given, self._formats, pq.Format.BINARY)
        while connection.flush():
            await trio.lowlevel.wait_writable(connection.socket)
        results: list[pq.abc.PGresult] = []
        while True:
            while connection.is_busy():
                await trio.lowlevel.wait_readable(connection.socket)
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                return _rows(results[-1])
            results.append(result)


def _rows(result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(result)
    if not result.ntuples:
        return []
    readers = [(column, _READERS[result.ftype(column)]) for column in range(result.nfields)]
    return [
        tuple(None if (value := result.get_value(row, column)) is None else read(value) for column, read in readers)
        for row in range(result.ntuples)
    ]
