"""The digests that requests are recognised by: the same method, target, route and `Idempotency-Key` are one request.

A message that another holdfast hands over is recognised by its id. The three kinds of digests can't collide: no part
but the key holds a space, and methods are in capitals, so neither "route" nor "handoff" is a method.
"""

from hashlib import blake2b

from holdfast.core.message import MessageId

HEADER = b"idempotency-key"

_SIZE = 16


def key_digest(key: bytes, method: str, url: str, route: str | None) -> bytes:
    """The same URL by a route is another scope: a route may add a signature or headers."""
    scope = f"{method} {url} " if route is None else f"route {route} {method} {url} "
    return blake2b(scope.encode("ascii") + key, digest_size=_SIZE).digest()


def handoff_digest(id: MessageId) -> bytes:
    return blake2b(b"handoff " + id, digest_size=_SIZE).digest()


def body_digest(body: bytes) -> bytes:
    """Tells whether a repeated key comes with another body."""
    return blake2b(body, digest_size=_SIZE).digest()
