from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.message import LANE_NAME_LIMIT, Message, id_text, lane_name, next_id, parse_id

MOMENTS = st.integers(0, 1 << 47)
BITS = st.integers(0, (1 << 80) - 1)
HEX = "0123456789abcdef" * 2


@given(st.lists(st.tuples(MOMENTS, BITS), min_size=2))
def test_ids_only_ever_grow_whatever_the_clock_does(ticks):
    ids = [bytes(16)]
    for now, bits in ticks:
        ids.append(next_id(ids[-1], now, bits))
    assert all(len(id) == 16 for id in ids)
    assert all(earlier < later for earlier, later in pairwise(ids))


@given(MOMENTS.filter(bool), BITS)
def test_an_id_starts_with_48_bits_of_the_milliseconds(now, bits):
    id = next_id(bytes(16), now, bits)
    assert int.from_bytes(id[:6], "big") == now
    assert int.from_bytes(id[6:], "big") == bits


def test_too_many_random_bits_do_not_reach_into_the_time():
    assert next_id(bytes(16), 7, (8 << 80) | 1) == next_id(bytes(16), 7, 1)


@pytest.mark.parametrize("step", [0, -1, -3_600_000])
def test_a_clock_that_has_not_moved_on_gives_one_after_the_last_that_nobody_can_tell(step):
    last = next_id(bytes(16), 10_000_000, (1 << 80) - 1)
    steps = [next_id(last, 10_000_000 + step, bits) for bits in (0, 12345 << 32, (1 << 80) - 1)]
    assert [int.from_bytes(id, "big") - int.from_bytes(last, "big") for id in steps] == [1, 12346, 1 << 48]


@given(st.binary(min_size=16, max_size=16))
def test_an_id_reads_back_from_its_text(id):
    assert id_text(id).startswith("msg_")
    assert parse_id(id_text(id)) == id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "msg_",
        HEX,
        "MSG_" + HEX,
        "evt_" + HEX,
        "msg_msg_" + HEX[:28],
        "msg_" + HEX[:-1],
        "msg_" + HEX + "0",
        "msg_" + HEX[:-1] + "g",
        "msg_" + HEX[:-1] + "٣",
        " msg_" + HEX,
        "msg_" + HEX + "\n",
        "msg_" + " " * 32,
        "msg_" + "00 " * 10 + "00",
        "msg_" + HEX[:30] + "\n\n",
    ],
)
def test_other_text_is_no_id(text):
    assert parse_id(text) is None


@given(st.text(alphabet=HEX[:16] + "ABCDEF \t\n", min_size=31, max_size=33).map("msg_".__add__) | st.text())
def test_whatever_is_read_as_an_id_is_16_bytes_and_spells_the_same(text):
    id = parse_id(text)
    assert id is None or (len(id) == 16 and id_text(id) == text.lower())


@given(st.text(max_size=LANE_NAME_LIMIT // 4))
def test_a_circuits_key_that_fits_is_its_lanes_name(key):
    assert lane_name(key) == key


def test_a_key_of_exactly_the_limit_still_fits():
    assert lane_name("a" * LANE_NAME_LIMIT) == "a" * LANE_NAME_LIMIT
    assert lane_name("a" * (LANE_NAME_LIMIT + 1)) != "a" * (LANE_NAME_LIMIT + 1)


@given(st.sampled_from("aé€😀"), st.integers(0, LANE_NAME_LIMIT))
def test_longer_keys_are_named_within_the_limit_and_differ_by_their_digest(letter, more):
    """The limit is one of bytes."""
    long = letter * (LANE_NAME_LIMIT // len(letter.encode()) + more)
    one, other = lane_name(long + "1"), lane_name(long + "2")
    assert len(one.encode()) <= LANE_NAME_LIMIT
    assert one != other
    assert letter * 50 in one


def message(path: bytes) -> Message:
    return Message(b"", "", "", "https", "a.example:8443", path, "POST", (), b"", 0, 0)


def test_a_target_is_put_together_from_scheme_authority_and_path():
    assert message(b"/p\xe9?x=1").target == "https://a.example:8443/p\xe9?x=1"


def test_a_masked_target_shows_scheme_host_and_a_short_hash_of_the_path():
    masked = message(b"/services/SECRET?token=SECRET").masked_target
    assert masked.startswith("https://a.example:8443/")
    assert len(masked) <= len("https://a.example:8443/") + 16
    assert "SECRET" not in masked
    assert masked == message(b"/services/SECRET?token=SECRET").masked_target
    assert masked != message(b"/services/OTHER?token=SECRET").masked_target
