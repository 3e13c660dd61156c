"""Every command against a real gateway: its effect, unknown names, no gateway, and no permission."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.scripted import Answer, Received, unix_script
from tests.support import fork_server
from tests.support.harness import HOLDFAST, PATIENCE, PLAIN, Gateway, Receiver, running, until
from tests.support.repetitions import cases

UNKNOWN = "msg_" + "0" * 32
ALL = {
    "status": ("status",),
    "circuits": ("circuits",),
    "circuit": ("circuits", "unknown.example"),
    "freeze": ("freeze", "unknown.example"),
    "unfreeze": ("unfreeze", "unknown.example"),
    "unfreeze all": ("unfreeze", "--all"),
    "probe": ("probe", "unknown.example"),
    "why": ("why", UNKNOWN),
    "messages list": ("messages", "list", "--host", "unknown.example"),
    "messages show": ("messages", "show", UNKNOWN),
    "messages retry": ("messages", "retry", UNKNOWN),
    "messages drop": ("messages", "drop", UNKNOWN),
    "messages drop many": ("messages", "drop", "--host", "unknown.example"),
    "dead list": ("dead", "list", "--host", "unknown.example"),
    "dead replay": ("dead", "replay", "--host", "unknown.example"),
    "dead drop": ("dead", "drop", "--host", "unknown.example"),
    "dead export": ("dead", "export", "-", "--host", "unknown.example"),
    "tail": ("tail",),
    "drain": ("drain", "--cancel"),
}
NAMELESS = {"status", "circuits", "unfreeze all", "tail", "drain"}
"""Commands that name no host and no message."""

DYING: dict[str, Any] = {"retry__max_retries": 0, "circuit__min_attempts": 0, "circuit__disable_after": 0}
"""With a receiver that answers 500: every message is dead after its first attempt, and the circuit stays enabled."""

AS_NOBODY = """
import json, os, sys
from importlib import import_module
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import main
for command in COMMANDS.values():
    import_module("holdfast.cli." + command.entry_point.partition(":")[0])
sys.stderr = open(os.devnull, "w")
main(["status", "--socket", "/does/not/exist"])  # imports the rest: another user may not reach the interpreter's files
sys.stderr = sys.__stderr__
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print([main(words) for words in json.loads(sys.argv[1])])
"""


def command(gateway: Gateway, *words: str) -> list[str]:
    return [HOLDFAST, *words, "--socket", str(gateway.control)]


def holdfast(gateway: Gateway, *words: str, status: int = 0) -> str:
    """What a command prints; it has to end with this status, and with one line on stderr unless that is 0."""
    done = fork_server.run(*words, "--socket", str(gateway.control))
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == (1 if status else 0), done.stderr
    return done.stdout if status == 0 else done.stderr


def document(gateway: Gateway, *words: str) -> dict[str, object]:
    return dict(json.loads(holdfast(gateway, *words, "--json")))


def key_of(receiver: Receiver) -> str:
    return f"127.0.0.1:{receiver.port}"


def send_many(gateway: Gateway, receiver: Receiver, number: int) -> list[str]:
    with httpx.Client(**PLAIN) as client, ThreadPoolExecutor(8) as pool:

        def send(index: int) -> str:
            return str(client.post(f"http://{gateway.ingest}/{receiver.url}/{index}", content=b"{}").json()["id"])

        return list(pool.map(send, range(number)))


def bury(gateway: Gateway, receiver: Receiver, number: int) -> list[str]:
    """So many dead messages. What the receiver heard up to then is forgotten."""
    receiver.answer = lambda request: 500
    ids = send_many(gateway, receiver, number)
    until(lambda: gateway.get("/status").json()["store"]["dead"] == number)
    receiver.requests.clear()
    return ids


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Gateway]:
    with running(tmp_path / "store", **DYING) as gateway:
        yield gateway


# -- circuits --------------------------------------------------------------------------------------------------------


def test_freeze_and_unfreeze(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store", retry__expire_after="47h") as gateway:
        key = key_of(receiver)
        assert "is frozen; no message waits for it, so none expires yet" in holdfast(gateway, "freeze", key)
        id = gateway.post(f"{receiver.url}/held").json()["id"]
        until(lambda: gateway.message(id)["state"] == "held")
        said = holdfast(gateway, "freeze", "127.0.0.1")
        assert said.startswith(f"{key} was frozen already; 1 message waiting, expiring from 20")
        assert "(in 46h) on" in said
        assert "frozen" in holdfast(gateway, "why", id)
        assert "is due now, but: It waits for its circuit, frozen" in holdfast(gateway, "messages", "retry", id)
        assert key in holdfast(gateway, "circuits", "--state", "frozen")
        assert receiver.requests == []
        assert "is not disabled" in holdfast(gateway, "probe", key, status=1)
        assert holdfast(gateway, "unfreeze", "--all").startswith(f"{key} is enabled again")
        assert receiver.wait_for_one().id == id
        assert holdfast(gateway, "unfreeze", "--all") == "no frozen circuits\n"


def test_probe(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store", circuit__min_attempts=3, retry__base="1h") as gateway:
        receiver.answer = lambda request: 500
        send_many(gateway, receiver, 5)
        until(lambda: gateway.get(f"/circuits/{key_of(receiver)}").json().get("state") == "disabled")
        receiver.answer = lambda request: 200
        assert holdfast(gateway, "probe", "127.0.0.1") == f"{key_of(receiver)} is probed now\n"
        until(lambda: gateway.get(f"/circuits/{key_of(receiver)}").json()["state"] == "enabled")
        assert document(gateway, "unfreeze", "127.0.0.1")["changed"] is False


# -- messages --------------------------------------------------------------------------------------------------------


def test_why_retry_and_drop_of_one_message(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store", retry__base="1h") as gateway:
        receiver.answer = lambda request: 500
        first, second = send_many(gateway, receiver, 2)
        for id in (first, second):
            until(lambda id=id: gateway.message(id)["state"] == "retrying")
        assert holdfast(gateway, "why", first).startswith("It waits for retry 1 of 11 at 20")
        assert document(gateway, "why", first)["state"] == "retrying"
        receiver.answer = lambda request: 200
        assert holdfast(gateway, "messages", "retry", first) == f"{first} is due now\n"
        until(lambda: gateway.message(first)["state"] == "delivered")
        for action in ("retry", "drop"):
            assert "was delivered" in holdfast(gateway, "messages", action, first, status=1)
        assert holdfast(gateway, "messages", "drop", second) == f"{second} was dropped\n"
        assert "There is no message" in holdfast(gateway, "messages", "show", second, status=1)


def test_a_message_in_flight_is_neither_retried_nor_dropped(gateway: Gateway, receiver: Receiver) -> None:
    go_on = threading.Event()
    receiver.answer = lambda request: 200 if go_on.wait(PATIENCE) else 500
    id = gateway.post(f"{receiver.url}/slow").json()["id"]
    until(lambda: gateway.message(id)["state"] == "in_flight")
    for action in ("retry", "drop"):
        assert "is in flight" in holdfast(gateway, "messages", action, id, status=1)
    go_on.set()
    until(lambda: gateway.message(id)["state"] == "delivered")


def test_messages_dropped_in_bulk(tmp_path: Path, receiver: Receiver) -> None:
    other = Receiver()
    with running(tmp_path / "store") as gateway:
        for each in (receiver, other):
            holdfast(gateway, "freeze", key_of(each))
            send_many(gateway, each, 3)
        assert holdfast(gateway, "messages", "drop", "--before", "1h") == "0 messages dropped\n"
        assert holdfast(gateway, "messages", "drop", "--host", key_of(receiver)) == "3 messages dropped\n"
        assert document(gateway, "messages", "drop", "--state", "held", "--limit", "2") == {"dropped": 2, "done": True}
        assert "name an ID or a filter" in holdfast(gateway, "messages", "drop", status=2)
        assert holdfast(gateway, "messages", "drop", "--yes") == "1 message dropped\n"
        assert gateway.get("/status").json()["store"]["waiting"] == 0
    other.close()


# -- dead messages ---------------------------------------------------------------------------------------------------


def test_dead_messages_are_listed_exported_replayed_and_dropped(
    dying: Gateway, receiver: Receiver, tmp_path: Path
) -> None:
    ids = bury(dying, receiver, 6)

    def listed(*filters: str) -> set[str]:
        return {json.loads(line)["id"] for line in holdfast(dying, "dead", "list", "--json", *filters).splitlines()}

    assert listed() == listed("--host", "127.0.0.1", "--since", "1h", "--reason", "exhausted") == set(ids)
    assert listed("--until", "1h") == listed("--reason", "expired") == set()
    assert len(listed("--limit", "4")) == 4
    assert holdfast(dying, "dead", "list").startswith("ID  ")
    assert holdfast(dying, "why", ids[0]).startswith("It is dead: ")

    file = tmp_path / "dead.jsonl"
    assert holdfast(dying, "dead", "export", str(file)).startswith(f"6 dead messages exported to {file} (")
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert {letter["id"] for letter in letters} == set(ids)
    assert {letter["body"] for letter in letters} == {"{}"}
    assert file.stat().st_mode & 0o777 == 0o600
    assert holdfast(dying, "dead", "export", "-") == file.read_text()

    receiver.answer = lambda request: 200
    assert document(dying, "dead", "replay", "--limit", "2") == {"replayed": 2, "done": True}
    assert "is replayed" in holdfast(dying, "messages", "retry", sorted(listed())[0])
    receiver.wait_for(lambda requests: len(requests) == 3)
    assert holdfast(dying, "dead", "drop", "--until", "1h") == "0 dead messages dropped\n"
    assert holdfast(dying, "dead", "drop", "--host", "127.0.0.1", "--limit", "1") == "1 dead message dropped\n"
    assert holdfast(dying, "dead", "drop") == "2 dead messages dropped\n"
    assert holdfast(dying, "dead", "list") == "no dead messages\n"


@pytest.mark.parametrize("number", cases([signal.SIGINT], [signal.SIGKILL]))
def test_a_replay_that_is_interrupted_and_repeated_delivers_each_once(
    dying: Gateway, receiver: Receiver, tmp_path: Path, number: signal.Signals
) -> None:
    ids = bury(dying, receiver, 600)
    receiver.answer = lambda request: 200
    with unix_script(tmp_path / "relay.sock") as relay:

        def pass_on(received: Received) -> Answer:
            """To the real gateway; the signal comes when it has done the second step but not yet said so."""
            relay.received.append(received)
            answer = dying.call(received.method, received.path, json.loads(received.body or b"null"))
            if relay.paths().count("POST /v1/dead/replay") == 2:
                replay.send_signal(number)
            return Answer(answer.status_code, answer.content)

        relay.answer = pass_on  # type: ignore[method-assign]
        words = [HOLDFAST, "dead", "replay", "--socket", relay.where]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as replay:
            out, error = replay.communicate(timeout=PATIENCE)
    assert error == ""
    if number is signal.SIGINT:
        assert replay.returncode == 130
        assert out.startswith("500 dead messages replayed, then it was interrupted")
    assert holdfast(dying, "dead", "replay") == "100 dead messages replayed\n"
    receiver.wait_for(lambda requests: len(requests) >= len(ids))
    assert document(dying, "drain", "--wait")["quiet"] is True
    assert Counter(request.id for request in receiver.requests) == Counter(ids)
    assert dying.get("/status").json()["store"]["dead"] == 0


def test_a_message_that_dies_again_is_not_replayed_again(dying: Gateway, receiver: Receiver) -> None:
    ids = bury(dying, receiver, 600)
    assert holdfast(dying, "dead", "replay") == "600 dead messages replayed\n"
    receiver.wait_for(lambda requests: len(requests) >= len(ids))
    assert document(dying, "drain", "--wait")["quiet"] is True
    assert Counter(request.id for request in receiver.requests) == Counter(ids)
    assert dying.get("/status").json()["store"]["dead"] == 600


# -- events and drain ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_tail_until_control_c(dying: Gateway, receiver: Receiver, as_json: bool) -> None:
    words = command(dying, "tail", *(["--json"] if as_json else []))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        with ThreadPoolExecutor(1) as pool:
            # The first line shows that it listens; until then nobody can know.
            first = pool.submit(tail.stdout.readline)
            until(lambda: dying.post(f"{receiver.url}/hello") and first.done())
        id = dying.post(f"{receiver.url}/hello").json()["id"]
        lines: list[str] = []
        while not (lines and "delivered" in lines[-1] and id in lines[-1]):
            lines.append(tail.stdout.readline())
        tail.send_signal(signal.SIGINT)
        _, error = tail.communicate(timeout=PATIENCE)
    assert (tail.returncode, error) == (130, "")
    if as_json:
        assert {json.loads(line)["event"] for line in lines} == {"accepted", "delivered"}
    else:
        assert f"{key_of(receiver)}  {id}  attempt 1 (first): 200 in " in lines[-1]


def test_tail_reports_that_the_gateway_stopped(gateway: Gateway, receiver: Receiver) -> None:
    words = command(gateway, "tail")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(tail.stdout.readline)
            until(lambda: gateway.post(f"{receiver.url}/hello") and first.done())
        assert gateway.stop() == 0
        _, error = tail.communicate(timeout=PATIENCE)
    assert tail.returncode == 1
    assert error.count("\n") == 1
    assert "closed the connection: it stopped" in error


def test_drain(tmp_path: Path, receiver: Receiver) -> None:
    go_on = threading.Event()
    with running(tmp_path / "store", drain__timeout="100ms") as gateway:
        assert holdfast(gateway, "drain", "--wait") == "draining: nothing is due or in flight\n"
        assert gateway.get("/readyz").status_code == 503
        assert holdfast(gateway, "status").startswith("not healthy: draining")
        receiver.answer = lambda request: 200 if go_on.wait(PATIENCE) else 500
        id = gateway.post(f"{receiver.url}/slow").json()["id"]
        until(lambda: gateway.message(id)["state"] == "in_flight")
        assert "1 attempt in flight" in holdfast(gateway, "drain", "--wait", status=1)
        assert holdfast(gateway, "drain") == "draining: 1 attempt in flight\n"
        go_on.set()
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert document(gateway, "drain", "--wait") == {"draining": True, "quiet": True, "in_flight": 0}
        assert holdfast(gateway, "drain", "--cancel") == "not draining: it is ready\n"
        assert gateway.get("/readyz").status_code == 200


@pytest.mark.parametrize("words", [("status", "--watch"), ("circuits", "--watch")])
def test_watch_until_control_c(gateway: Gateway, receiver: Receiver, words: tuple[str, ...]) -> None:
    gateway.post(f"{receiver.url}/x")
    with subprocess.Popen(command(gateway, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        blocks = 0
        while blocks < 2:
            blocks += watch.stdout.readline() == "\n"
        watch.send_signal(signal.SIGINT)
        _, error = watch.communicate(timeout=PATIENCE)
    assert (watch.returncode, error) == (130, "")


# -- what can go wrong, with every command ---------------------------------------------------------------------------


def fails_with(gateway: Gateway, names: set[str], expected: str) -> None:
    """Each of these commands ends with 1, one line on stderr that says this, and nothing on stdout."""
    for name in names:
        done = fork_server.run(*ALL[name], "--socket", str(gateway.control))
        assert (name, done.returncode, done.stdout, done.stderr.count("\n")) == (name, 1, "", 1), done.stderr
        assert expected in done.stderr, name


def test_unknown_names(gateway: Gateway) -> None:
    fails_with(gateway, ALL.keys() - NAMELESS, "holdfast: There is no ")


def test_a_gateway_that_was_stopped(gateway: Gateway) -> None:
    assert gateway.stop() == 0
    fails_with(gateway, set(ALL), "holdfast: no gateway is running: ")


def test_a_gateway_that_was_killed(gateway: Gateway) -> None:
    gateway.kill()
    fails_with(gateway, set(ALL), "holdfast: no gateway is running: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_socket_that_may_not_be_opened(gateway: Gateway) -> None:
    """One process runs them all: it imports everything before it becomes another user."""
    commands = json.dumps([[*words, "--socket", str(gateway.control)] for words in ALL.values()])
    words = [sys.executable, "-c", AS_NOBODY, commands]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, str([1] * len(ALL)) + "\n")
    told = done.stderr.splitlines()
    assert len(told) == len(ALL)
    for line in told:
        assert line.startswith(f"holdfast: not permitted to use {gateway.control}")
