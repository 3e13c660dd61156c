"""Which headers travel."""

import pytest

from holdfast.ingest.hygiene import dress, sift
from holdfast.ingest.refusals import BAD_DELAY, BAD_HEADER, BAD_KEY, TWO_TARGETS, Refused

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
STAYING = [
    b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-authorization",
    b"proxy-connection", b"proxy-anything", b"host", b"content-length", b"expect", b"holdfast-target",
    b"holdfast-delay", b"holdfast-token", b"holdfast-anything",
]  # fmt: skip


def test_end_to_end_headers_travel_unchanged_and_in_order():
    assert sift(END_TO_END).travelling == END_TO_END


@pytest.mark.parametrize("name", STAYING)
def test_staying_headers(name):
    assert sift([(b"x-a", b"1"), (name, b"close"), (b"x-b", b"2")]).travelling == [(b"x-a", b"1"), (b"x-b", b"2")]


@pytest.mark.parametrize("name", [b"holdfast", b"proxy", b"x-holdfast-target", b"content-length-hint"])
def test_similar_names_travel(name):
    assert sift([(name, b"1")]).travelling == [(name, b"1")]


def test_headers_named_in_connection_stay():
    headers = [
        (b"x-hop", b"1"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-end", b"2"),
        (b"connection", b"x-other"),
        (b"x-other", b"3"),
        (b"x-hop", b"4"),
    ]
    assert sift(headers).travelling == [(b"x-end", b"2")]


@pytest.mark.parametrize("value", [b"evt_1", b"a", b"!" * 255, b"~/:,;"])
def test_a_valid_webhook_id_travels(value):
    assert sift([(b"webhook-id", value)]).travelling == [(b"webhook-id", value)]


@pytest.mark.parametrize("value", [b"", b"a" * 256, b"a.b", b"a b", b"a\tb", b"\xe9", b"\x7f"])
def test_an_invalid_webhook_id_is_dropped(value):
    assert sift([(b"webhook-id", value), (b"x-a", b"1")]).travelling == [(b"x-a", b"1")]


def test_two_webhook_ids_are_both_dropped():
    assert sift([(b"webhook-id", b"a"), (b"webhook-id", b"a")]).travelling == []


def test_what_is_said_to_holdfast():
    sifted = sift([(b"holdfast-target", b"t"), (b"holdfast-delay", b"1s"), (b"idempotency-key", b"k")])
    assert (sifted.target, sifted.delay, sifted.key) == (b"t", b"1s", b"k")
    assert sift([(b"holdfast-handoff", b"h")]).handoff == b"h"
    assert sift([]) == ([], None, None, None, None)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [(b"holdfast-target", TWO_TARGETS), (b"holdfast-delay", BAD_DELAY), (b"idempotency-key", BAD_KEY)],
)
def test_the_same_header_twice(name, refusal):
    sift([(name, b"1s"), (name, b"1s")])
    with pytest.raises(Refused) as caught:
        sift([(name, b"1s"), (name, b"2s")])
    assert caught.value.refusal is refusal


@pytest.mark.parametrize(
    "pair", [(b"x", b"a\r"), (b"x", b"a\nb"), (b"x", b"\0"), (b"x\n", b"a"), (b"idempotency-key", b"\r")]
)
def test_line_breaks_and_nul_never_pass(pair):
    with pytest.raises(Refused) as caught:
        sift([pair])
    assert caught.value.refusal is BAD_HEADER


def test_route_headers_replace_those_of_the_same_name():
    travelling = [(b"x-team", b"app"), (b"x-a", b"1"), (b"x-team", b"again")]
    dressed = dress(travelling, ((b"x-team", b"billing"), (b"x-b", b"2")))
    assert dressed == ((b"x-a", b"1"), (b"x-team", b"billing"), (b"x-b", b"2"))
    assert dress(travelling, ()) == tuple(travelling)
