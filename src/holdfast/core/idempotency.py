"""What an `Idempotency-Key` is known by: two requests with the same method, target, route and key are one."""

from hashlib import blake2b

HEADER = b"idempotency-key"

_SIZE = 16


def key_digest(key: bytes, method: str, url: str, route: str | None) -> bytes:
    """The same URL by a route is another scope: what a route adds, such as a signature, would be missing."""
    # No part but the key has a space in it. Methods are in capitals, so "route" and "handoff" (see `handoff_digest`)
    # are none: neither the parts nor the three kinds can run into each other.
    scope = f"{method} {url} " if route is None else f"route {route} {method} {url} "
    return blake2b(scope.encode("ascii") + key, digest_size=_SIZE).digest()


def body_digest(body: bytes) -> bytes:
    """What tells another body under the same key."""
    return blake2b(body, digest_size=_SIZE).digest()
