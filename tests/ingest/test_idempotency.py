"""Idempotency keys and delays."""

import pytest

from holdfast.ingest.delay import parse_delay
from holdfast.ingest.idempotency import idempotency_key
from holdfast.ingest.refusals import BAD_DELAY, BAD_KEY, Refused

URL = "https://api.example.com/hooks/7"


def test_the_same_request_has_the_same_key():
    key = idempotency_key(b"k", "POST", URL, None, b"body")
    assert key == idempotency_key(b"k", "POST", URL, None, b"body")
    assert (len(key.digest), len(key.body)) == (16, 16)


@pytest.mark.parametrize(
    ("key", "method", "url", "route"),
    [
        (b"other", "POST", URL, None),
        (b"k", "PUT", URL, None),
        (b"k", "POST", URL + "?x", None),
        (b"k", "POST", URL, "billing"),
    ],
)
def test_key_method_target_and_route_make_another_key(key, method, url, route):
    assert idempotency_key(key, method, url, route, b"").digest != idempotency_key(b"k", "POST", URL, None, b"").digest


def test_another_body_has_the_same_digest_and_another_body_digest():
    one, other = (idempotency_key(b"k", "POST", URL, None, body) for body in (b"1", b"2"))
    assert one.digest == other.digest
    assert one.body != other.body


def test_the_longest_key():
    idempotency_key(b"k" * 255, "POST", URL, None, b"")


@pytest.mark.parametrize("key", [b"", b"k" * 256])
def test_bad_keys(key):
    with pytest.raises(Refused) as caught:
        idempotency_key(key, "POST", URL, None, b"")
    assert caught.value.refusal is BAD_KEY


@pytest.mark.parametrize(
    ("value", "milliseconds"), [(b"30s", 30_000), (b"250ms", 250), (b"0s", 0), (b"1d", 86_400_000)]
)
def test_delay(value, milliseconds):
    assert parse_delay(value, 86_400_000) == milliseconds


@pytest.mark.parametrize("value", [b"", b"30", b"-1s", b"soon", b"1d1ms", b"2d", b"86400001ms", b"\xb2s", b"1 s"])
def test_bad_delay(value):
    with pytest.raises(Refused) as caught:
        parse_delay(value, 86_400_000)
    assert caught.value.refusal is BAD_DELAY
