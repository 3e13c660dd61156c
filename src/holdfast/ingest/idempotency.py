"""Idempotency-Key: what makes two requests the same one. Scoped to method and target."""

from hashlib import blake2b

from holdfast.ingest.refusals import BAD_KEY, Refused
from holdfast.store.port import IdempotencyKey

LONGEST_KEY = 255
DIGEST_SIZE = 16


def idempotency_key(key: bytes, method: str, url: str, body: bytes) -> IdempotencyKey:
    if not key:
        raise Refused(BAD_KEY, "Idempotency-Key is empty; give it a value or leave it out.")
    if len(key) > LONGEST_KEY:
        raise Refused(BAD_KEY, f"Idempotency-Key has {len(key)} bytes; at most {LONGEST_KEY} are allowed.")
    # Neither a method nor a target has a space in it, so the parts can't run into each other.
    scoped = f"{method} {url} ".encode("ascii") + key
    return IdempotencyKey(
        blake2b(scoped, digest_size=DIGEST_SIZE).digest(), blake2b(body, digest_size=DIGEST_SIZE).digest()
    )
