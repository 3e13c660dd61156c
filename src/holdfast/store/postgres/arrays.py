"""Lists as the server's arrays, in its binary format: a whole group's column is one value, and most of what is sent.

The driver's own way spells every item out as text, which the server reads back. And it chooses the width of numbers
by their values, so that one statement is prepared for each width that comes along; here they are always the widest,
and the statements say what they want.
"""

from collections.abc import Callable, Sequence
from functools import partial
from struct import pack
from typing import Any

import psycopg
from psycopg.abc import Buffer, DumperKey
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

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
"""The server's number for what an array holds, and how that is written."""


def encode(kind: str, value: Any) -> bytes:
    """A list as an array of the server's, or a number as a bigint, by the name of its type."""
    if kind == "bigint":
        return pack("!q", value)
    element, items = _ENCODERS[kind]
    # What an array begins with: one dimension, counted from 1.
    return pack("!iiIii", 1, None in value, element, len(value), 1) + items(value)


_KINDS: dict[type, tuple[str, int]] = {
    bool: ("boolean[]", 1000),
    bytes: ("bytea[]", 1001),
    str: ("text[]", 1009),
    int: ("bigint[]", 1016),
}
"""What a list of Python's is sent as, and the server's number for that."""


class _Array(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, of: type) -> None:
        super().__init__(cls)
        self._kind, self.oid = _KINDS[of]

    def dump(self, obj: list[Any]) -> Buffer:
        return encode(self._kind, obj)


class _Lists(Dumper):
    """Chooses by the first item that is one; without any, the statement says what it is a list of."""

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
    connection.adapters.register_dumper(list, _Lists)
