from __future__ import annotations

import enum
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.process.log import JsonFormatter, TextFormatter, event, setup

LOGGER = logging.getLogger("holdfast.test")
NOON = 1_767_268_801.1239


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def record(name: str = "attempt_failed", /, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": name, "levelname": "WARNING"})
    made.created = NOON
    made.fields = fields
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert len(line.splitlines()) == 1
    loaded: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return loaded


def lines_of(format: Literal["json", "text"], level: Literal["debug", "info", "warning", "error"]) -> io.StringIO:
    stream = io.StringIO()
    setup(format, level, stream)
    return stream


def test_json_line() -> None:
    assert JsonFormatter().format(record(host="a.example:443", error="timeout", duration=1.5)) == (
        '{"time":"2026-01-01T12:00:01.123Z","level":"warning","event":"attempt_failed",'
        '"host":"a.example:443","error":"timeout","duration":1.5}'
    )


def test_text_line() -> None:
    assert TextFormatter().format(record(host="a.example:443", error="timeout", status=None)) == (
        "12:00:01.123 WARN attempt_failed host=a.example:443 error=timeout status=null"
    )


def test_text_quotes_what_could_be_misread() -> None:
    line = TextFormatter().format(record(a="", b="two words", c='"', d="x=y", e="1\n2", f=["x", 1], g="grün"))
    assert line == (r'12:00:01.123 WARN attempt_failed a="" b="two words" c="\"" d="x=y" e="1\n2" f=["x",1] g=grün')


def test_events_reach_the_stream_with_their_fields() -> None:
    stream = lines_of("json", "info")
    event(LOGGER, logging.INFO, "accepted", id="msg_1", name="n", logger="l")
    line = json.loads(stream.getvalue())
    assert {**line, "time": ""} == {
        "time": "",
        "level": "info",
        "event": "accepted",
        "id": "msg_1",
        "name": "n",
        "logger": "l",
    }


def test_level_is_for_our_lines_and_libraries_only_warn() -> None:
    stream = lines_of("text", "info")
    event(LOGGER, logging.DEBUG, "hidden")
    event(LOGGER, logging.INFO, "shown")
    logging.getLogger("httpx").info("HTTP Request: POST https://secret.example")
    logging.getLogger("trio").warning("odd %s", "thing")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("INFO shown")
    assert second.endswith('WARN log logger=trio message="odd thing"')


def test_a_second_setup_replaces_the_first() -> None:
    first, second = lines_of("text", "debug"), lines_of("json", "error")
    event(LOGGER, logging.WARNING, "hidden")
    event(LOGGER, logging.ERROR, "shown")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["event"] == "shown"


@pytest.mark.parametrize("format", ["json", "text"])
def test_an_exception_is_one_field_on_the_same_line(format: Literal["json", "text"]) -> None:
    stream = lines_of(format, "info")
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError as error:
        event(LOGGER, logging.ERROR, "store_failed", exc_info=error)
    (line,) = stream.getvalue().splitlines()
    text = json.loads(line)["exception"] if format == "json" else json.loads(line.partition("exception=")[2])
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("RuntimeError: first\nsecond")


def test_fields_cannot_hide_the_lines_own_keys() -> None:
    line = as_json(record(time="t", level="l", event="e", exception="x"))
    assert (line["level"], line["event"]) == ("warning", "attempt_failed")
    assert (line["time_"], line["level_"], line["event_"], line["exception_"]) == ("t", "l", "e", "x")


class Reason(enum.Enum):
    SILENCE = "silence"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"ok \xff\n", "ok \\xff\n"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Path("/var"), "/var"),
        (Reason.SILENCE, "silence"),
        ({Reason.SILENCE: b"x", 1: (2, 3)}, {"Reason.SILENCE": "x", "1": [2, 3]}),
        (True, True),
        (None, None),
    ],
)
def test_values_that_json_does_not_know(value: object, shown: object) -> None:
    assert as_json(record(value=value))["value"] == shown


@given(st.text() | st.binary(), st.text())
def test_no_value_and_no_name_breaks_the_line(value: str | bytes, name: str) -> None:
    line = as_json(record(name, value=value))
    assert line["event"] == name
    if isinstance(value, str):
        assert line["value"] == value
    text = TextFormatter().format(record(name, **{"value": value, name: 1}))
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text


class Broken(io.StringIO):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left"), ValueError("closed file")])
def test_a_stream_that_fails_loses_the_line_and_nothing_else(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    setup("json", "info", Broken(error))
    event(LOGGER, logging.ERROR, "lost")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("target", ["full disk", "closed pipe", "closed stream"])
def test_a_process_with_a_broken_stderr_still_ends_well(target: str) -> None:
    code = (
        "import logging, sys; from holdfast.process.log import event, setup; setup('json', 'info')\n"
        f"if {target == 'closed stream'}: sys.stderr.close()\n"
        "for number in range(1000): event(logging.getLogger('holdfast'), logging.ERROR, 'lost', a=number)\n"
        "print('went on')"
    )
    reader = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    reader.wait()
    assert reader.stdin is not None
    with Path("/dev/full").open("wb") as full, reader.stdin as broken:
        stderr = full if target == "full disk" else broken
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, check=False)
    assert (done.returncode, done.stdout) == (0, b"went on\n")
