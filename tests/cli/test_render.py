"""What people see, to the letter."""

from datetime import UTC, datetime

import pytest

from holdfast.cli.circuits import circuit_details, circuit_row, unfreeze_text
from holdfast.cli.messages import message_details, message_row, next_step, no_messages
from holdfast.cli.output import WIDTH
from holdfast.cli.status import status_lines
from tests.cli.scripted import attempt, circuit, message, status

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def text(lines: list[str]) -> str:
    assert all(len(line) <= WIDTH for line in lines)
    return "\n".join(lines) + "\n"


def test_status_of_a_busy_gateway() -> None:
    assert text(status_lines(status(), NOON)) == (
        """\
healthy
gateway   holdfast 0.1.0, process 4242, started 3h ago
store     1.2 GiB of 4 GiB used (30%) in /var/lib/holdfast
waiting   1,204: 1,000 first attempts, 204 retries; 12 in flight
oldest    2h ago
next due  in 4m
expiry    the earliest in 40h
dead      17
circuits  14 enabled, 1 disabled, 0 frozen
totals    accepted 10,200; refused 3 (store-full 3); delivered 9,000; failed attempts 512; dead 2
          (expired 2); trips 0
"""
    )


def test_status_of_an_idle_gateway() -> None:
    store = {"path": "/s", "used_bytes": 0, "max_bytes": 4 << 30, "waiting": 0, "dead": 0}
    lines = status_lines(status(store=store, in_flight=0), NOON)
    assert lines[2:5] == [
        "store     0 B of 4 GiB used (0%) in /s",
        "waiting   nothing; 0 in flight",
        "dead      0",
    ]


def test_status_without_anything_to_expire() -> None:
    lines = status_lines(status(earliest_expiry_at=None, next_due_at=None), NOON)
    assert "expiry    none: every circuit is enabled" in lines
    assert "next due  -" in lines


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"degraded": ["store_full"]},
            "not healthy: the store is full: new webhooks are refused with 507 until there is room",
        ),
        ({"degraded": ["something_new"]}, "not healthy: something_new"),
        ({"ready": False}, "not healthy: not ready: it is starting, or its store failed"),
        (
            {"ready": False, "degraded": ["store_away"]},
            "not healthy: the database is unreachable: delivery resumes by itself when it is back",
        ),
        (
            {"ready": False, "draining": True, "degraded": ["x"]},
            "not healthy: x; draining: it finishes what is due",
        ),
    ],
)
def test_status_says_why_it_is_not_healthy(changes: dict[str, object], expected: str) -> None:
    assert status_lines(status(**changes), NOON)[0] == expected


def test_status_says_what_waits_on_this_machine_for_the_database() -> None:
    store = {**status()["store"], "spool": 1_234, "spooling_since": "2026-01-01T11:00:00.000Z"}
    lines = status_lines(status(store=store), NOON)
    assert "spool     1,234 wait on this machine's disk for the database; the first came 1h ago" in lines
    store = {**store, "spool": 0, "spooling_since": None}
    assert not [line for line in status_lines(status(store=store), NOON) if line.startswith("spool")]


@pytest.mark.parametrize(
    ("offset", "line"),
    [
        (259_199.417, "clock     2 days, 23:59:59 ahead of the wall clock, which signatures use"),
        (-2.5, "clock     0:00:02 behind the wall clock, which signatures use"),
    ],
)
def test_status_says_that_the_clock_is_off(offset: float, line: str) -> None:
    lines = status_lines(status(clock={"offset": offset, "off": True}), NOON)
    assert lines[2] == line
    assert len(line) <= 80


def test_status_says_nothing_of_a_clock_that_is_right_or_unknown() -> None:
    assert status_lines(status(clock={"offset": 0.004, "off": False}), NOON) == status_lines(status(), NOON)


def test_status_of_a_replica_says_what_it_does() -> None:
    lines = status_lines(status(role="ingest"), NOON)
    assert lines[1].endswith(", role ingest")


def test_status_in_colour() -> None:
    assert status_lines(status(), NOON, colour=True)[0] == "\x1b[32mhealthy\x1b[0m"
    assert status_lines(status(ready=False), NOON, colour=True)[0].startswith("\x1b[31mnot healthy\x1b[0m: ")


def test_circuit_row() -> None:
    disabled = circuit(
        state="disabled",
        reason="failure_rate",
        waiting=1_204,
        dead=3,
        window={"attempts": 400, "failures": 380},
        next_probe_at="2026-01-01T12:04:14.000Z",
    )
    assert circuit_row(disabled, NOON) == [
        "disabled",
        "3h ago",
        "failure_rate",
        "1,204",
        "3",
        "380/400",
        "in 4m",
        "hooks.example.com:443",
    ]


def test_disabled_circuit_at_length() -> None:
    disabled = circuit(
        state="disabled",
        reason="failure_rate",
        consecutive_failures=412,
        waiting=1,
        next_probe_at="2026-01-01T12:04:14.000Z",
        last_success_at=None,
    )
    assert text(circuit_details(disabled, NOON)) == (
        """\
hooks.example.com:443 is disabled: too large a part of its attempts failed
since          2026-01-01 09:00:00 UTC (3h ago)
sends          one probe at a time, the next in 4m
in a row       412 failures
window         12 of 340 attempts failed
last success   never
first attempt  2025-12-20 12:00:00 UTC (12d ago)
waiting        1 message
dead           0 messages
"""
    )


def test_enabled_and_frozen_circuits_at_length() -> None:
    enabled = circuit_details(circuit(), NOON)
    assert enabled[0] == "hooks.example.com:443 is enabled"
    assert enabled[2] == "sends          everything, at most 16 at once"
    frozen = circuit_details(circuit(state="frozen", reason="operator"), NOON, colour=True)
    assert frozen[0] == "hooks.example.com:443 is \x1b[31mfrozen\x1b[0m: an operator froze it"
    assert frozen[2] == "sends          nothing, until: holdfast unfreeze hooks.example.com:443"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"changed": True, "replayed": 0, "circuit": circuit()}, "hooks.example.com:443 is enabled again"),
        ({"changed": False, "replayed": 0, "circuit": circuit()}, "hooks.example.com:443 was enabled already"),
        (
            {"changed": True, "replayed": 1, "circuit": circuit(waiting=1_204)},
            "hooks.example.com:443 is enabled again; 1 dead message replayed; 1,204 messages waiting",
        ),
    ],
)
def test_unfreeze(answer: dict[str, object], expected: str) -> None:
    assert unfreeze_text(answer) == expected


def test_message_rows() -> None:
    assert message_row(message(), NOON) == [
        "msg_00000000000000000000000000000001",
        "retrying",
        "3h ago",
        "1",
        "in 4m",
        "hooks.example.com:443",
    ]
    dead = message(state="dead", dead_reason="exhausted", next_attempt_at=None)
    assert message_row(dead, NOON)[4] == "exhausted"
    assert message_row(message(state="held"), NOON)[4] == "circuit"


def test_message_with_its_attempts() -> None:
    tried = [
        attempt(),
        attempt(
            number=2,
            kind="retry",
            at="2026-01-01T11:50:00.000Z",
            duration=0.0124,
            status=503,
            error=None,
            detail=None,
            answer="<html>\n <b>down</b>\x1b[2J</html>",
        ),
        attempt(number=3, kind="probe", error="egress_denied", detail="a word " * 12, fault="here", address=None),
    ]
    assert text(message_details(message(route="billing", attempts=tried), NOON)) == (
        """\
msg_00000000000000000000000000000001 is retrying
target    POST https://hooks.example.com/in/7?x=1
host      hooks.example.com:443
route     billing
size      1.2 KiB
accepted  2026-01-01 08:59:30 UTC (3h ago)
retries   1

#  KIND   AT        TOOK  RESULT         FAULT  ADDRESS          DETAIL
1  first  3h ago   30.0s  timeout        host   203.0.113.7:443  no answer within 30 s
2  retry  10m ago   12ms  503            host   203.0.113.7:443  answer: <html>
                                                                 <b>down</b>\\x1b[2J</html>
3  probe  3h ago   30.0s  egress_denied  here   -                a word a word a word a word a word
                                                                 a word a word a word a word a word
                                                                 a word a word

next  retry 2 in 4m
"""
    )


def test_message_at_its_end() -> None:
    dead = message(
        state="dead", retry=11, dead_reason="exhausted", next_attempt_at=None, finished_at="2026-01-01T11:00:00.000Z"
    )
    lines = message_details(dead, NOON)
    assert lines[0] == "msg_00000000000000000000000000000001 is dead"
    assert lines[6] == "finished  2026-01-01 11:00:00 UTC (1h ago)"
    assert lines[8] == "no failed attempts"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": "queued", "retry": 0}, "the first attempt in 4m"),
        ({"state": "queued", "retry": 0, "next_attempt_at": None}, "the first attempt, as soon as its host has room"),
        ({"state": "retrying"}, "retry 2 in 4m"),
        ({"state": "retrying", "next_attempt_at": "2026-01-01T11:59:00.000Z"}, "retry 2, due 1m ago"),
        ({"state": "in_flight"}, "an attempt is under way"),
        ({"state": "held"}, "it waits for its circuit, see: holdfast circuits hooks.example.com:443"),
        ({"state": "delivered"}, "nothing, it was delivered"),
        (
            {"state": "dead", "dead_reason": "expired"},
            "nothing, its circuit let nothing through for too long; holdfast messages retry "
            "msg_00000000000000000000000000000001 replays it",
        ),
    ],
)
def test_what_comes_next(changes: dict[str, object], expected: str) -> None:
    assert next_step(message(1, **changes), NOON) == expected


@pytest.mark.parametrize(
    ("state", "host", "expected"),
    [
        (None, None, "no messages yet"),
        ("in_flight", None, "no in flight messages"),
        (None, "a", "no messages for a"),
        ("dead", "a", "no dead messages for a"),
    ],
)
def test_no_messages(state: str | None, host: str | None, expected: str) -> None:
    assert no_messages(state, host) == expected
