"""Which headers are forwarded, idempotency keys, and delays."""

import pytest

from holdfast.ingest.headers import idempotency_key, message_headers, parse_delay, split_headers
from holdfast.ingest.refusals import BAD_DELAY, BAD_HEADER, BAD_KEY, TWO_TARGETS, Refused

URL = "https://api.example.com/hooks/7"
END_TO_END = [
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer receiver"),
    (b"cookie", b"a=1"),
    (b"cookie", b"b=2"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    (b"idempotency-key", b"k-1"),
    (b"user-agent", b"node"),
    (b"accept-encoding", b"gzip"),
    (b"x-signature", b"\xe9 latin, tabs\t inside"),
    (b"x-empty", b""),
    (b"content-type", b"text/plain"),
]
NOT_FORWARDED = [
    b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-authorization",
    b"proxy-connection", b"proxy-anything", b"host", b"content-length", b"expect", b"holdfast-target",
    b"holdfast-delay", b"holdfast-token", b"holdfast-anything",
]  # fmt: skip


def test_end_to_end_headers_are_forwarded_unchanged_and_in_order():
    assert split_headers(END_TO_END).forwarded == END_TO_END


@pytest.mark.parametrize("name", NOT_FORWARDED)
def test_hop_by_hop_headers_and_those_for_holdfast_are_not_forwarded(name):
    assert split_headers([(b"x-a", b"1"), (name, b"close"), (b"x-b", b"2")]).forwarded == [
        (b"x-a", b"1"),
        (b"x-b", b"2"),
    ]


@pytest.mark.parametrize("name", [b"holdfast", b"proxy", b"x-holdfast-target", b"content-length-hint"])
def test_headers_with_similar_names_are_forwarded(name):
    assert split_headers([(name, b"1")]).forwarded == [(name, b"1")]


def test_headers_that_connection_names_are_not_forwarded():
    headers = [
        (b"x-hop", b"1"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-end", b"2"),
        (b"connection", b"x-other"),
        (b"x-other", b"3"),
        (b"x-hop", b"4"),
    ]
    assert split_headers(headers).forwarded == [(b"x-end", b"2")]


@pytest.mark.parametrize("value", [b"evt_1", b"a", b"!" * 255, b"~/:,;"])
def test_a_valid_webhook_id_is_forwarded(value):
    assert split_headers([(b"webhook-id", value)]).forwarded == [(b"webhook-id", value)]


@pytest.mark.parametrize("value", [b"", b"a" * 256, b"a.b", b"a b", b"a\tb", b"\xe9", b"\x7f"])
def test_an_invalid_webhook_id_is_dropped(value):
    assert split_headers([(b"webhook-id", value), (b"x-a", b"1")]).forwarded == [(b"x-a", b"1")]


def test_two_webhook_ids_are_both_dropped():
    assert split_headers([(b"webhook-id", b"a"), (b"webhook-id", b"a")]).forwarded == []


def test_headers_for_holdfast_are_read():
    split = split_headers([(b"holdfast-target", b"t"), (b"holdfast-delay", b"1s"), (b"idempotency-key", b"k")])
    assert (split.target, split.delay, split.key) == (b"t", b"1s", b"k")
    assert split_headers([(b"holdfast-handoff", b"h")]).handoff == b"h"
    assert split_headers([]) == ([], None, None, None, None)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [(b"holdfast-target", TWO_TARGETS), (b"holdfast-delay", BAD_DELAY), (b"idempotency-key", BAD_KEY)],
)
def test_a_repeated_header_must_have_the_same_value(name, refusal):
    split_headers([(name, b"1s"), (name, b"1s")])
    with pytest.raises(Refused) as caught:
        split_headers([(name, b"1s"), (name, b"2s")])
    assert caught.value.refusal is refusal


@pytest.mark.parametrize(
    "pair", [(b"x", b"a\r"), (b"x", b"a\nb"), (b"x", b"\0"), (b"x\n", b"a"), (b"idempotency-key", b"\r")]
)
def test_line_breaks_and_nul_are_refused(pair):
    with pytest.raises(Refused) as caught:
        split_headers([pair])
    assert caught.value.refusal is BAD_HEADER


def test_route_headers_replace_headers_of_the_same_name():
    forwarded = [(b"x-team", b"app"), (b"x-a", b"1"), (b"x-team", b"again")]
    merged = message_headers(forwarded, ((b"x-team", b"billing"), (b"x-b", b"2")))
    assert merged == ((b"x-a", b"1"), (b"x-team", b"billing"), (b"x-b", b"2"))
    assert message_headers(forwarded, ()) == tuple(forwarded)


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
def test_another_value_method_target_or_route_makes_another_key(key, method, url, route):
    assert idempotency_key(key, method, url, route, b"").digest != idempotency_key(b"k", "POST", URL, None, b"").digest


def test_another_body_changes_only_the_body_digest():
    one, other = (idempotency_key(b"k", "POST", URL, None, body) for body in (b"1", b"2"))
    assert one.digest == other.digest
    assert one.body != other.body


def test_a_key_of_255_bytes_is_accepted():
    idempotency_key(b"k" * 255, "POST", URL, None, b"")


@pytest.mark.parametrize("key", [b"", b"k" * 256])
def test_an_empty_or_too_long_key_is_refused(key):
    with pytest.raises(Refused) as caught:
        idempotency_key(key, "POST", URL, None, b"")
    assert caught.value.refusal is BAD_KEY


@pytest.mark.parametrize(
    ("value", "milliseconds"), [(b"30s", 30_000), (b"250ms", 250), (b"0s", 0), (b"1d", 86_400_000)]
)
def test_a_delay_is_read_as_milliseconds(value, milliseconds):
    assert parse_delay(value, 86_400_000) == milliseconds


@pytest.mark.parametrize("value", [b"", b"30", b"-1s", b"soon", b"1d1ms", b"2d", b"86400001ms", b"\xb2s", b"1 s"])
def test_a_malformed_or_too_long_delay_is_refused(value):
    with pytest.raises(Refused) as caught:
        parse_delay(value, 86_400_000)
    assert caught.value.refusal is BAD_DELAY
