"""What operators ask of hosts that another replica owns: a row that the owner carries out and answers."""

from typing import NamedTuple

from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.ownership import CHANNEL

KEPT = 60
"""Seconds after which a request that nobody answered, or whose answer nobody took, is removed."""
REQUEST, ANSWER = "request", "answer"
"""What a notification says to the owner, and to whoever asked."""


class Asked(NamedTuple):
    id: bytes
    asked_by: int
    request: bytes


def ask(connection: Connection, id: bytes, asked_by: int, owner: int, request: bytes) -> None:
    connection.execute(
        """INSERT INTO requests (id, asked_by, owner, asked_at, request)
        VALUES (%s, %s, %s, clock_timestamp(), %s)""",
        (id, asked_by, owner, request),
    )
    connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL.format(owner), REQUEST))
    connection.commit()


def asked(connection: Connection, owner: int) -> list[Asked]:
    """What waits to be carried out by a replica."""
    found = connection.execute(
        "SELECT id, asked_by, request FROM requests WHERE owner = %s AND answer IS NULL ORDER BY asked_at", (owner,)
    ).fetchall()
    connection.commit()
    return [Asked(*row) for row in found]


def answer(connection: Connection, request: Asked, answer: bytes) -> None:
    connection.execute("UPDATE requests SET answer = %s WHERE id = %s", (answer, request.id))
    connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL.format(request.asked_by), ANSWER))
    connection.commit()


def answers(connection: Connection, asked_by: int) -> dict[bytes, bytes]:
    """Take the answers to what a replica asked, and remove what is past its time."""
    found = connection.execute(
        "DELETE FROM requests WHERE asked_by = %s AND answer IS NOT NULL RETURNING id, answer", (asked_by,)
    ).fetchall()
    connection.execute("DELETE FROM requests WHERE asked_at < clock_timestamp() - %s * interval '1 second'", (KEPT,))
    connection.commit()
    return dict(found)


def withdraw(connection: Connection, id: bytes) -> bytes | None:
    """Take a request back. Returns its answer if it has one."""
    found = connection.execute("DELETE FROM requests WHERE id = %s RETURNING answer", (id,)).fetchone()
    connection.commit()
    return None if found is None or found[0] is None else bytes(found[0])
