"""messages and why, against a server that plays scripted answers."""

import json
from datetime import UTC, datetime

import pytest

from holdfast.cli.control_client import PAGE
from holdfast.cli.main import main
from holdfast.cli.messages import message_details, message_row, next_step, no_messages, retry_text
from holdfast.cli.output import WIDTH
from tests.cli.scripted import Document, Script, attempt, documents, message, problem

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Captured = pytest.CaptureFixture[str]
ID = "msg_00000000000000000000000000000001"


def text(lines: list[str]) -> str:
    assert all(len(line) <= WIDTH for line in lines)
    return "\n".join(lines) + "\n"


def test_rows_of_the_list() -> None:
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


def test_details_with_attempts() -> None:
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


def test_details_of_a_dead_message() -> None:
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
        ({"state": "in_flight"}, "an attempt is in flight"),
        ({"state": "held"}, "it waits for its circuit, see: holdfast circuits hooks.example.com:443"),
        ({"state": "delivered"}, "nothing, it was delivered"),
        (
            {"state": "dead", "dead_reason": "expired"},
            "nothing, its circuit let nothing through for too long; holdfast messages retry "
            "msg_00000000000000000000000000000001 replays it",
        ),
    ],
)
def test_the_next_step(changes: dict[str, object], expected: str) -> None:
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
def test_text_for_an_empty_list(state: str | None, host: str | None, expected: str) -> None:
    assert no_messages(state, host) == expected


def test_the_list_comes_in_pages_up_to_a_limit(gateway: Script, capsys: Captured) -> None:
    full = [message(number) for number in range(PAGE)]
    gateway.answers[f"GET /v1/messages?state=dead&host=a.example&limit={PAGE}"] = documents(
        {"messages": full, "next": ID}
    )
    gateway.answers[f"GET /v1/messages?state=dead&host=a.example&limit=1&after={ID}"] = documents(
        {"messages": [message(PAGE)], "next": ID}
    )
    command = ["messages", "list", "--state", "dead", "--host", "a.example", "--limit", str(PAGE + 1)]
    assert main([*command, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [*full, message(PAGE)]
    assert len(gateway.received) == 2


def test_an_empty_page_is_skipped(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": [], "next": ID})
    gateway.answers[f"GET /v1/messages?limit={PAGE}&after={ID}"] = documents({"messages": [message()], "next": None})
    assert main(["messages", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", ID]


def test_no_messages(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": [], "next": None})
    assert main(["messages", "list"]) == 0
    assert capsys.readouterr().out == "no messages yet\n"


def test_show(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages/{ID}"] = documents(message())
    assert main(["messages", "show", ID]) == 0
    assert capsys.readouterr().out.startswith(f"{ID} is retrying\n")
    assert main(["messages", "show", ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == message()


def test_an_id_that_is_not_valid_text_is_unknown(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/messages/%FF"] = problem(404, "There is no message.")
    assert main(["messages", "show", "\udcff"]) == 1
    assert capsys.readouterr().err == "holdfast: There is no message.\n"


def test_why(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages/{ID}"] = documents(message(why="It waits for\x1b[2J retry 2."))
    assert main(["why", ID]) == main(["why", ID, "--json"]) == 0
    text, _, as_json = capsys.readouterr().out.partition("\n")
    assert text == "It waits for\\x1b[2J retry 2."
    assert json.loads(as_json) == {"id": ID, "state": "retrying", "why": "It waits for\x1b[2J retry 2."}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"result": "due", "message": message()}, f"{ID} is due now"),
        (
            {"result": "due", "message": message(state="held", why="It waits for its circuit.")},
            f"{ID} is due now, but: It waits for its circuit.",
        ),
        ({"result": "replayed", "message": message()}, f"{ID} is replayed, with all of its retries"),
    ],
)
def test_text_of_retry(answer: Document, expected: str) -> None:
    assert retry_text(answer) == expected


def test_retry_and_drop_one_message(gateway: Script, capsys: Captured) -> None:
    answer = {"result": "due", "message": message()}
    gateway.answers[f"POST /v1/messages/{ID}/retry"] = documents(answer)
    gateway.answers[f"DELETE /v1/messages/{ID}"] = documents({"dropped": 1})
    for action in ("retry", "drop"):
        assert main(["messages", action, ID]) == main(["messages", action, ID, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [f"{ID} is due now", f"{ID} was dropped"]
    assert [json.loads(line) for line in lines[1::2]] == [answer, {"dropped": 1}]


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_a_message_in_flight_is_neither_retried_nor_dropped(gateway: Script, capsys: Captured, action: str) -> None:
    path = f"DELETE /v1/messages/{ID}" if action == "drop" else f"POST /v1/messages/{ID}/retry"
    gateway.answers[path] = problem(409, f"An attempt of {ID} is in flight.")
    assert main(["messages", action, ID]) == 1
    assert capsys.readouterr() == ("", f"holdfast: An attempt of {ID} is in flight.\n")
