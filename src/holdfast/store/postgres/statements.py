"""Prepared statements of the hot path, and lists as arrays in the server's binary format.

The text of a Statement names its values, each with its type: `%(ids)s::bytea[]`. The driver can execute it as a part of
a larger transaction. `Statement.run` sends it through libpq as a transaction by itself: one write, one wait on the loop
and one read. The driver's cursor would block a thread, and write and poll for each statement.

A column of a whole group is one array. The driver would send each item as text, and prepare one statement for each
width of numbers that it meets. Here numbers have the width that the statement names, or the widest.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from struct import Struct, pack
from typing import Any

import psycopg
import trio
from psycopg import errors, pq
from psycopg.abc import Buffer, DumperKey
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

_VALUE = re.compile(r"%\((\w+)\)s::(\w+(?:\[\])?)")
_BIGINT = Struct("!q")
_READERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value == b"\x01",
    17: bytes,
    20: lambda value: _BIGINT.unpack(value)[0],
    21: lambda value: int.from_bytes(value, "big", signed=True),
    23: lambda value: int.from_bytes(value, "big", signed=True),
}
"""By the type's oid: boolean, bytea, bigint, smallint and integer."""


class Statement:
    def __init__(self, text: str) -> None:
        self.text = text
        self._types: dict[str, str] = dict(_VALUE.findall(text))
        self._names = list(self._types)
        self._numbered = _VALUE.sub(lambda found: f"${self._names.index(found[1]) + 1}::{found[2]}", text).encode()
        self._name = sha256(self._numbered).hexdigest()[:16].encode()
        self._formats = [pq.Format.BINARY] * len(self._names)

    def prepare(self, connection: pq.abc.PGconn) -> None:
        """Prepares it on the server, and blocks until that is done."""
        result = connection.prepare(self._name, self._numbered)
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)

    async def run(self, connection: pq.abc.PGconn, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Executes it where it was prepared. Returns the rows."""
        given = [encode(kind, values[name]) for name, kind in self._types.items()]
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


_NULL = pack("!i", -1)


def _of_numbers(code: str, width: int, items: Sequence[Any]) -> bytes:
    if None in items:
        return b"".join([_NULL if item is None else pack(f"!i{code}", width, item) for item in items])
    fields = [width] * (2 * len(items))
    fields[1::2] = items
    return pack("!" + f"i{code}" * len(items), *fields)


def _of_bytes(items: Sequence[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (pack("!i", len(item)), item)
    return b"".join(parts)


def _of_texts(items: Sequence[str | None]) -> bytes:
    return _of_bytes([None if item is None else item.encode() for item in items])


_ENCODERS: dict[str, tuple[int, Callable[[Sequence[Any]], bytes]]] = {
    "boolean[]": (16, partial(_of_numbers, "?", 1)),
    "bytea[]": (17, _of_bytes),
    "bigint[]": (20, partial(_of_numbers, "q", 8)),
    "smallint[]": (21, partial(_of_numbers, "h", 2)),
    "integer[]": (23, partial(_of_numbers, "i", 4)),
    "text[]": (25, _of_texts),
}
"""By the array's type: the oid of an item's type, and the encoder of the items."""


def encode(kind: str, value: Any) -> bytes:
    """A list as an array, or a number as a bigint, by the name of the type."""
    if kind == "bigint":
        return pack("!q", value)
    element, items = _ENCODERS[kind]
    # An array's header: one dimension, whether it has nulls, the items' type, how many, counted from 1.
    return pack("!iiIii", 1, None in value, element, len(value), 1) + items(value)


_KINDS: dict[type, tuple[str, int]] = {
    bool: ("boolean[]", 1000),
    bytes: ("bytea[]", 1001),
    str: ("text[]", 1009),
    int: ("bigint[]", 1016),
}
"""By the type of a list's items: the type of the array, and its oid."""


class _Array(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, of: type) -> None:
        super().__init__(cls)
        self._kind, self.oid = _KINDS[of]

    def dump(self, obj: list[Any]) -> Buffer:
        return encode(self._kind, obj)


class _Lists(Dumper):
    """Chooses the array's type by the first item that is not None. Without any, the statement's type counts."""

    def get_key(self, obj: list[Any], format: PyFormat) -> DumperKey:
        kind = _kind_of(obj)
        return self.cls if kind is None else (self.cls, kind)

    def upgrade(self, obj: list[Any], format: PyFormat) -> Dumper:
        kind = _kind_of(obj)
        return self if kind is None else _Array(self.cls, kind)

    def dump(self, obj: list[None]) -> Buffer:
        return b"{%s}" % b",".join([b"NULL"] * len(obj))


def _kind_of(items: list[Any]) -> type | None:
    return next((type(item) for item in items if item is not None), None)


def register(connection: psycopg.Connection[Any]) -> None:
    """Has the driver send lists as binary arrays too."""
    connection.adapters.register_dumper(list, _Lists)
