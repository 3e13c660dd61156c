"""Idempotency-Key: what makes two requests the same one. Scoped to method, target and route."""

from holdfast.core.idempotency import body_digest, key_digest
from holdfast.ingest.refusals import BAD_KEY, Refused
from holdfast.store.port import IdempotencyKey

LONGEST_KEY = 255


def idempotency_key(key: bytes, method: str, url: str, route: str | None, body: bytes) -> IdempotencyKey:
    if not key:
        raise Refused(BAD_KEY, "Idempotency-Key is empty; give it a value or leave it out.")
    if len(key) > LONGEST_KEY:
        raise Refused(BAD_KEY, f"Idempotency-Key has {len(key)} bytes; at most {LONGEST_KEY} are allowed.")
    return IdempotencyKey(key_digest(key, method, url, route), body_digest(body))
