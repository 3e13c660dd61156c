"""The Holdfast-Handoff header is read back as it was written, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.handoff_header import FARTHEST, MOST_ATTEMPTS, SKEW, HandoffFacts, read_handoff, write_handoff
from holdfast.core.message import Entry, Message, Place, Standing

NOW = 1_700_000_000_000
ID = (NOW << 80).to_bytes(16, "big")
GOOD = f"id=msg_{ID.hex()}; accepted={NOW}; born={NOW}; retry=0; attempts=0"


def entry(place: Place, route: str | None = None, *, signed: bool = False) -> Entry:
    return Entry(Message(ID, "h:1", "h:1", "http", "h:1", b"/", "POST", (), b"", NOW, NOW, route, signed), place)


@given(
    born=st.integers(NOW, NOW + FARTHEST),
    due=st.none() | st.integers(0, NOW + FARTHEST),
    retry=st.integers(0, 20),
    more=st.integers(0, 100),
    held=st.booleans(),
    route=st.sampled_from([None, "billing", "a-b_c"]),
    signed=st.booleans(),
)
def test_a_written_value_is_read_back(
    born: int, due: int | None, retry: int, more: int, held: bool, route: str | None, signed: bool
) -> None:
    if due is None:
        place = Place(Standing.WAITING, born, attempts=more)
    else:
        place = Place(Standing.RETRY, born, due, retry, retry + more, held)
    signed = signed and route is not None
    assert read_handoff(write_handoff(entry(place, route, signed=signed)), NOW) == HandoffFacts(
        ID, NOW, place, route, signed
    )


def test_an_active_message_waits_in_the_other_queue() -> None:
    facts = read_handoff(write_handoff(entry(Place(Standing.ACTIVE, NOW))), NOW)
    assert facts.place == Place(Standing.WAITING, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        GOOD.upper(),
        GOOD + ";",
        " " + GOOD,
        GOOD.replace("; ", ";"),
        GOOD.replace("; born", "; color=red; born"),
        GOOD.replace("retry=0", "retry=00"),
        GOOD.replace("retry=0", "retry=-1"),
        GOOD.replace("attempts=0", "attempts=0x1"),
        GOOD.replace("attempts=0", "attempts=\N{ARABIC-INDIC DIGIT ONE}"),
        GOOD.replace("msg_", ""),
        GOOD + "; held",
        GOOD + "; signed",
        GOOD + "; route=Billing",
        GOOD + "; route=a; due=1",
        GOOD.replace("retry=0", "retry=1"),  # a retry has a moment
        GOOD.replace("retry=0", "retry=2").replace("attempts=0", "attempts=1") + f"; due={NOW}",
        GOOD.replace("retry=0", "retry=21").replace("attempts=0", "attempts=30") + f"; due={NOW}",
        GOOD.replace("attempts=0", f"attempts={MOST_ATTEMPTS + 1}"),
        GOOD.replace(f"born={NOW}", f"born={NOW - 1}"),
        GOOD.replace(f"born={NOW}", f"born={NOW + FARTHEST + 1}"),
        GOOD + f"; due={NOW + FARTHEST + 1}",
        GOOD.replace(f"={NOW}", f"={NOW + SKEW + 1}"),
        GOOD.replace(ID.hex(), "f" * 32),
    ],
)
def test_malformed_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_handoff(text, NOW)


def test_the_well_formed_value_is_read() -> None:
    assert read_handoff(GOOD, NOW).place == Place(Standing.WAITING, NOW)
