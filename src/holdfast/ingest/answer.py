"""The answer to an accepted message: encoded once per target, since only the id differs."""

import json

from holdfast.core.message import MessageId, id_text
from holdfast.http.message import Headers, Response

# Of an id's length, and of bytes that no target has.
_PLACE_OF_ID = b"\0" * len(id_text(bytes(16)))


def prepare_answer(status: int, url: str, *, duplicate: bool = False) -> tuple[bytes, ...]:
    """The encoded answer, cut where the id belongs."""
    headers: Headers = [(b"content-type", b"application/json")] if status != 204 else []
    headers.append((b"holdfast-message-id", _PLACE_OF_ID))
    if duplicate:
        headers.append((b"holdfast-duplicate", b"true"))
    body = b'{"id": "%s", "target": %s, "state": "queued"}' % (_PLACE_OF_ID, json.dumps(url).encode())
    encoded = Response(status, headers, b"" if status == 204 else body).encode()
    return tuple(encoded.split(_PLACE_OF_ID))


def fill_answer(prepared: tuple[bytes, ...], id: MessageId) -> bytes:
    return id_text(id).encode("ascii").join(prepared)
