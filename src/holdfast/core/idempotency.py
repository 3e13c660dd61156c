"""What an `Idempotency-Key` is known by: two requests with the same method, target and key are one."""

from hashlib import blake2b

HEADER = b"idempotency-key"

_SIZE = 16


def key_digest(key: bytes, method: str, url: str) -> bytes:
    # Neither a method nor a target has a space in it, so the parts can't run into each other.
    return blake2b(f"{method} {url} ".encode("ascii") + key, digest_size=_SIZE).digest()


def body_digest(body: bytes) -> bytes:
    """What tells another body under the same key."""
    return blake2b(body, digest_size=_SIZE).digest()
