"""tail: events as text and as JSON."""

import pytest

from holdfast.cli.main import main
from holdfast.cli.tail import event_line
from tests.cli.scripted import Answer, Document, Script, problem

Captured = pytest.CaptureFixture[str]

TIME = "2026-01-01T12:00:03.120Z"
ID = "msg_00000000000000000000000000000001"
ABOUT = {"message": ID, "host": "a.example:443", "target": "https://a.example/#0badcafe", "number": 2}


@pytest.mark.parametrize(
    ("event", "fields", "expected"),
    [
        ("accepted", {**ABOUT, "route": None}, f"accepted          a.example:443  {ID}"),
        ("accepted", {**ABOUT, "route": "billing"}, f"accepted          a.example:443  {ID}  route billing"),
        (
            "delivered",
            {**ABOUT, "kind": "retry", "duration": 0.012, "status": 200},
            f"delivered         a.example:443  {ID}  attempt 2 (retry): 200 in 12ms",
        ),
        (
            "attempt_failed",
            {
                **ABOUT, "kind": "retry", "duration": 0.012, "status": 503, "detail": "the receiver answered 503",
                "retry": 2, "next_attempt_at": "2026-01-01T12:04:17.000Z",
            },
            f"attempt_failed    a.example:443  {ID}  attempt 2 (retry): 503 in 12ms, retry 2 at 12:04:17",
        ),
        (
            "attempt_failed",
            {**ABOUT, "kind": "probe", "duration": 30.0, "error": "timeout", "detail": "no answer\nwithin 30 s"},
            f"attempt_failed    a.example:443  {ID}  attempt 2 (probe): timeout in 30.0s, no answer\\nwithin 30 s",
        ),
        (
            "message_dead",
            {**ABOUT, "reason": "exhausted", "attempts": 12},
            f"message_dead      a.example:443  {ID}  exhausted after 12 attempts",
        ),
        (
            "circuit_changed",
            {
                "host": "a.example:443", "before": "enabled", "after": "disabled", "rule": "trip",
                "reason": "failure_rate", "consecutive_failures": 99,
                "window_attempts": 1_101, "window_failures": 1_000,
            },
            "circuit_changed   a.example:443  enabled -> disabled by failure_rate "
            "(1,000 of 1,101 attempts failed, 99 in a row)",
        ),
        ("messages_expired", {"host": "a.example:443", "count": 1}, "messages_expired  a.example:443  1 message"),
        ("dead_replayed", {"host": None, "count": 3}, "dead_replayed     3 messages"),
        (
            "something_new",
            {"host": "a.example:443", "count": 3, "name": "x y", "none": None},
            "something_new     a.example:443  count=3 name=x y",
        ),
    ],
)  # fmt: skip
def test_an_event_on_one_line(event: str, fields: Document, expected: str) -> None:
    assert event_line({"time": TIME, "event": event, **fields}) == f"12:00:03.120  {expected}"


def test_lost_events_are_shown() -> None:
    expected = "events_lost       1,203 events not shown: they came faster than they were read"
    assert event_line({"event": "events_lost", "count": 1_203}) == " " * 14 + expected
    assert "\x1b[31mevents_lost     \x1b[0m" in event_line({"event": "events_lost", "count": 1}, colour=True)


def test_tail(gateway: Script, capsys: Captured) -> None:
    lines = (
        b'{"time": "%s", "event": "accepted", "host": "a:1"}\n{"event": "events_lost", "count": 2}\n' % TIME.encode()
    )
    gateway.answers["GET /v1/events"] = [Answer(200, lines)]
    assert main(["tail", "--json"]) == 0
    assert capsys.readouterr().out.encode() == lines
    assert main(["tail"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["12:00:03.120", "events_lost"]


def test_a_refused_tail(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/events"] = problem(503, "The store failed.")
    assert main(["tail"]) == 1
    assert capsys.readouterr() == ("", "holdfast: The store failed.\n")
