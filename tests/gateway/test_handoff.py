"""drain.handoff with two real processes: waiting messages move to the other gateway, once, and continue there."""

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.handoff_header import FARTHEST, MOST_ATTEMPTS
from tests.support import fork_server
from tests.support.harness import PATIENCE, PLAIN, Gateway, Received, Receiver, running, settings, until
from tests.support.ports import refusing_port
from tests.support.repetitions import cases

TOKEN = "s3cret"
LONG: dict[str, Any] = {"retry__base": "1h", "circuit__min_attempts": 0, "drain__timeout": "60s"}
"""What failed once is not due again in this test, and a hand-over has all the time it needs."""
BRIEF: dict[str, Any] = {"drain__timeout": "6s"}
"""For one that can't be reached: it is tried until the time is over."""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return file


@pytest.fixture
def another() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@contextmanager
def second(tmp_path: Path, token: Path, **keys: object) -> Iterator[Gateway]:
    with running(tmp_path / "second", ingest__token_file=token, **(LONG | keys)) as gateway:
        yield gateway


@contextmanager
def first(tmp_path: Path, token: Path, to: str, **keys: object) -> Iterator[Gateway]:
    given = {"drain__handoff": f"http://{to}", "ingest__token_file": token} | LONG | keys
    with running(tmp_path / "first", **given) as gateway:
        yield gateway


def post(gateway: Gateway, target: str, body: bytes = b"{}", **headers: str) -> str:
    answer = gateway.post(target, body, holdfast_token=TOKEN, **headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def failing(gateway: Gateway, receiver: Receiver, count: int) -> list[str]:
    """Messages whose first attempt failed, and which wait for their retry."""
    receiver.answer = lambda request: 500
    ids = [post(gateway, f"{receiver.url}/{number}", str(number).encode()) for number in range(count)]
    until(lambda: gateway.get("/status").json()["queues"]["retry"] == count)
    return ids


def waiting(gateway: Gateway) -> list[dict[str, Any]]:
    return list(gateway.call("GET", "/v1/messages?limit=1000").json()["messages"])


def key_of(receiver: Receiver) -> str:
    return f"127.0.0.1:{receiver.port}"


def fsck(store: Path) -> None:
    done = fork_server.run("fsck", env=settings(store))
    assert done.returncode == 0, done.stdout + done.stderr


def last(gateway: Gateway, name: str) -> dict[str, Any]:
    return [event for event in gateway.events() if event["event"] == name][-1]


# -- what is handed over -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("processes")
def test_retrying_delayed_and_held_messages_are_handed_over_and_arrive_once(
    tmp_path: Path, token: Path, receiver: Receiver, another: Receiver
) -> None:
    with second(tmp_path, token) as other:
        with first(tmp_path, token, other.ingest) as gateway:
            retrying = failing(gateway, receiver, 3)
            gateway.call("POST", f"/v1/circuits/{key_of(another)}/freeze")
            held = [post(gateway, f"{another.url}/x", b"h", webhook_id="own-id"), post(gateway, f"{another.url}/x")]
            delayed = post(gateway, f"{receiver.url}/delayed", holdfast_delay="1h")
            assert gateway.stop() == 0
            exit_line = gateway.events()[-1]
            assert (exit_line["event"], exit_line["waiting"], exit_line["handed_over"]) == ("exit", 0, 6)
            assert exit_line["handed_over_by_host"] == {key_of(receiver): 4, key_of(another): 2}
            assert last(gateway, "handed_over")["left"] == {}
        receiver.answer = lambda request: 200
        another.wait_for(lambda requests: len(requests) == 2)
        for id in (*retrying, delayed):
            assert other.message(id)["state"] in ("queued", "retrying")
            other.call("POST", f"/v1/messages/{id}/retry")
        until(lambda: other.get("/status").json()["store"]["waiting"] == 0)
        assert all(other.message(id)["state"] == "delivered" for id in (*retrying, *held, delayed))
        assert other.stop() == 0
    assert Counter(delivered(receiver.requests)) == Counter([*retrying, delayed])
    assert Counter(delivered(another.requests)) == Counter(["own-id", held[1]])
    for request in (*receiver.requests, *another.requests):
        assert not [name for name in request.headers if name.startswith("holdfast-")]
    fsck(tmp_path / "first")
    fsck(tmp_path / "second")


def test_fresh_and_interrupted_messages_are_handed_over(tmp_path: Path, token: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with second(tmp_path, token) as other:
        # Of 15 s ten are for what is due, and here something is due all the time.
        with first(tmp_path, token, other.ingest, drain__timeout="15s", delivery__per_host=1) as gateway:
            ids = [post(gateway, f"{receiver.url}/{number}") for number in range(3)]
            assert entered.wait(PATIENCE)
            assert gateway.stop() == 0
            assert (gateway.events()[-1]["waiting"], gateway.events()[-1]["handed_over"]) == (0, 3)
        let_go.set()
        receiver.answer = lambda request: 200
        until(lambda: other.get("/status").json()["store"]["waiting"] == 0)
        assert [attempt["number"] for attempt in other.message(ids[0])["attempts"]] == [2]
    # The one that hung was with the receiver already.
    assert Counter(request.id for request in receiver.requests) == Counter([*ids, ids[0]])


def test_retry_number_age_and_due_time_are_kept(tmp_path: Path, token: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    with second(tmp_path, token) as other:
        other.call("POST", f"/v1/circuits/{key_of(receiver)}/freeze")
        with first(tmp_path, token, other.ingest, retry__base="20ms") as gateway:
            id = post(gateway, f"{receiver.url}/x")
            until(lambda: gateway.message(id)["retry"] >= 5)
            gateway.call("POST", f"/v1/circuits/{key_of(receiver)}/freeze")
            assert gateway.call("POST", "/v1/drain", {"wait": True}).json()["quiet"], "all outcomes are on disk"
            [before] = waiting(gateway)
            assert gateway.stop() == 0
        [after] = waiting(other)
        for fact in ("id", "retry", "next_attempt_at", "accepted_at", "target", "method", "size", "state"):
            assert after[fact] == before[fact], fact
        made = len(before["attempts"])
        receiver.answer = lambda request: 500 if len(receiver.requests) == made else 200
        other.call("POST", f"/v1/circuits/{key_of(receiver)}/unfreeze")
        until(lambda: other.message(id)["attempts"])
        again = other.message(id)
        assert (again["retry"], again["attempts"][0]["number"]) == (before["retry"] + 1, made + 1)
        assert again["attempts"][0]["kind"] == "retry"


def test_the_due_time_is_kept_to_the_millisecond(tmp_path: Path, token: Path, receiver: Receiver) -> None:
    with second(tmp_path, token) as other, first(tmp_path, token, other.ingest) as gateway:
        failing(gateway, receiver, 3)
        before = {each["id"]: each["next_attempt_at"] for each in waiting(gateway)}
        assert gateway.stop() == 0
        assert {each["id"]: each["next_attempt_at"] for each in waiting(other)} == before
        assert all(each["state"] == "retrying" for each in waiting(other))


def test_a_signed_message_is_handed_over_only_where_its_route_signs(
    tmp_path: Path, token: Path, receiver: Receiver
) -> None:
    (tmp_path / "secret").write_text("whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
    config = tmp_path / "routes.toml"
    config.write_text(f'[routes.billing]\nurl = "{receiver.url}/in"\nsign = {{ secret_file = "{tmp_path}/secret" }}\n')
    receiver.answer = lambda request: 500
    keys = LONG | {"ingest__token_file": token}
    with running(tmp_path / "second", **keys) as other:
        to = f"http://{other.ingest}"
        with running(tmp_path / "first", config=config, drain__handoff=to, **keys) as gateway:
            send_by_route(gateway)
            until(lambda: gateway.get("/status").json()["queues"]["retry"] == 1)
            assert gateway.stop() == 0
            assert gateway.events()[-1]["waiting"] == 1
            assert last(gateway, "handed_over")["left"] == {"it answered 404, unknown-route": 1}
        config_there = tmp_path / "second.toml"
        config_there.write_text(config.read_text())
    with running(tmp_path / "second", config=config_there, **keys) as other:
        to = f"http://{other.ingest}"
        with running(tmp_path / "first", config=config, drain__handoff=to, **keys) as gateway:
            assert gateway.stop() == 0
            assert gateway.events()[-1]["handed_over"] == 1
        receiver.answer = lambda request: 200
        [message] = waiting(other)
        other.call("POST", f"/v1/messages/{message['id']}/retry")
        signed = receiver.wait_for(lambda requests: requests[-1].status == 200)[-1]
    assert signed.headers["webhook-signature"].startswith("v1,")
    assert signed.id == message["id"]


def send_by_route(gateway: Gateway) -> None:
    answer = httpx.post(f"http://{gateway.ingest}/to/billing", headers={"holdfast-token": TOKEN}, **PLAIN)
    assert answer.status_code == 202


# -- what can't be handed over stays -----------------------------------------------------------------------------------


class NotHoldfast:
    """Answers everything alike, as a web server at the wrong address would."""

    def __init__(self, status: int = 200, body: bytes = b"") -> None:
        self._answer = status, body

    def __enter__(self) -> "NotHoldfast":
        status, body = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def trouble(kind: str, tmp_path: Path, token: Path) -> Iterator[tuple[str, str]]:
    """The address of a holdfast that takes nothing, and what the log says of it."""
    if kind == "down":
        with socket.socket() as taken:
            # Nobody else gets this port meanwhile, and nobody listens on it.
            taken.bind(("127.0.0.1", 0))
            yield f"127.0.0.1:{taken.getsockname()[1]}", "Connection refused"
    elif kind == "no holdfast":
        with NotHoldfast() as server:
            yield server.address, "it answered 200 without the message's id"
    elif kind == "deep":
        with NotHoldfast(500, b"[" * 50_000) as server:
            yield server.address, "it answered 500"
    elif kind == "wrong token":
        (tmp_path / "another").write_text("another")
        with second(tmp_path, tmp_path / "another") as other:
            yield other.ingest, "it answered 403, wrong-token"
    elif kind == "no token":
        with running(tmp_path / "second") as other:
            yield other.ingest, "it answered 403, handoff-needs-token"
    else:
        with second(tmp_path, token, store__host_share="0.0000001") as other:
            yield other.ingest, "it answered 507, host-share-used"


@pytest.mark.parametrize("kind", cases(["down", "wrong token", "full"], ["no holdfast", "deep", "no token"]))
def test_refused_messages_stay_and_are_delivered_after_a_restart(
    tmp_path: Path, token: Path, receiver: Receiver, kind: str
) -> None:
    keys = BRIEF if kind == "down" else {}
    with trouble(kind, tmp_path, token) as (address, said):
        with first(tmp_path, token, address, **keys) as gateway:
            ids = failing(gateway, receiver, 5)
            assert gateway.stop() == 0
            exit_line, told = gateway.events()[-1], last(gateway, "handed_over")
    assert (exit_line["waiting"], exit_line["handed_over"]) == (5, 0)
    assert exit_line["waiting_by_host"] == {key_of(receiver): 5}
    assert (told["messages"], told["level"]) == (0, "warning")
    assert any(said in reason for reason in told["left"]), told
    assert TOKEN not in json.dumps(told)
    receiver.answer = lambda request: 200
    with first(tmp_path, token, address) as gateway:
        for id in ids:
            gateway.call("POST", f"/v1/messages/{id}/retry")
        until(lambda: gateway.get("/status").json()["store"]["waiting"] == 0)
    assert Counter(request.id for request in receiver.requests if request.status == 200) == Counter(ids)


# -- killed in the middle ----------------------------------------------------------------------------------------------


class Passing:
    """Between the two: counts answers that came back, and holds them up from a number on."""

    def __init__(self, to: str, hold_after: int) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._hold_after = hold_after
        self.answers = 0
        self.holding = threading.Event()
        self._let_go = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._to)
            except OSError:
                near.close()
                continue
            for source, sink, back in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass, args=(source, sink, back), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(65_536):
                if back:
                    self._count(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def _count(self, data: bytes) -> None:
        with self._lock:
            self.answers += data.count(b"HTTP/1.1 202")
            held = self.answers > self._hold_after
        if held and not self._let_go.is_set():
            self.holding.set()
            self._let_go.wait(PATIENCE)

    def let_go(self) -> None:
        self._let_go.set()

    def close(self) -> None:
        self.let_go()
        self._listener.close()


def test_the_sending_gateway_is_killed_in_the_middle(tmp_path: Path, token: Path, receiver: Receiver) -> None:
    """Some are acknowledged and forgotten, some acknowledged and not yet; given again they are one each."""
    with second(tmp_path, token) as other:
        passing = Passing(other.ingest, 140)
        with first(tmp_path, token, passing.address) as gateway:
            ids = failing(gateway, receiver, 170)
            gateway.process.send_signal(signal.SIGTERM)
            assert passing.holding.wait(PATIENCE)
            gateway.kill()
        passing.close()
        taken = {each["id"] for each in waiting(other)}
        assert 128 < len(taken) < 170
        with first(tmp_path, token, other.ingest) as gateway:
            kept = {each["id"] for each in waiting(gateway)}
            assert kept | taken == set(ids)
            assert kept & taken, "some were given, and nobody knew here"
            assert gateway.stop() == 0
            assert gateway.events()[-1]["waiting"] == 0
        check_all_arrive_once(other, receiver, ids)


def test_the_receiving_gateway_is_killed_in_the_middle_and_restarts(
    tmp_path: Path, token: Path, receiver: Receiver
) -> None:
    port = refusing_port()
    here = {"listen__ingest": f"127.0.0.1:{port}"}
    with second(tmp_path, token, **here) as other:
        passing = Passing(other.ingest, 40)
        with first(tmp_path, token, passing.address) as gateway:
            ids = failing(gateway, receiver, 100)
            gateway.process.send_signal(signal.SIGTERM)
            assert passing.holding.wait(PATIENCE)
            other.kill()
            passing.let_go()
            with second(tmp_path, token, **here) as other_again:
                assert gateway.process.wait(PATIENCE * 2) == 0
                assert (gateway.events()[-1]["waiting"], gateway.events()[-1]["handed_over"]) == (0, 100)
                check_all_arrive_once(other_again, receiver, ids)
        passing.close()


def check_all_arrive_once(other: Gateway, receiver: Receiver, ids: list[str]) -> None:
    assert Counter(each["id"] for each in waiting(other)) == Counter(ids)
    receiver.answer = lambda request: 200
    for id in ids:
        other.call("POST", f"/v1/messages/{id}/retry")
    until(lambda: other.get("/status").json()["store"]["waiting"] == 0)
    assert Counter(delivered(receiver.requests)) == Counter(ids)


def delivered(requests: list[Received]) -> list[str]:
    return [request.id for request in requests if request.status == 200]


def test_a_message_that_is_handed_back_is_accepted_again(tmp_path: Path, token: Path, receiver: Receiver) -> None:
    """There and back again, and there once more: a key that is remembered must not stand for what was given away."""
    ports = {"first": refusing_port(), "second": refusing_port()}

    def one(name: str, to: str) -> Any:
        keys = LONG | {"listen__ingest": f"127.0.0.1:{ports[name]}", "ingest__token_file": token}
        return running(tmp_path / name, drain__handoff=f"http://127.0.0.1:{ports[to]}", **keys)

    with ExitStack() as processes:
        giver = processes.enter_context(one("first", "second"))
        ids = failing(giver, receiver, 3)
        for name, to in (("second", "first"), ("first", "second"), ("second", "first")):
            taker = processes.enter_context(one(name, to))
            assert giver.stop() == 0
            assert (giver.events()[-1]["waiting"], giver.events()[-1]["handed_over"]) == (0, 3)
            assert {each["id"] for each in waiting(taker)} == set(ids)
            giver = taker


# -- hostile hand-overs, with the token --------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "two processes", "postgres"])
def engine(request: pytest.FixtureRequest) -> dict[str, object]:
    """Settings of each kind of store and process."""
    if request.param == "postgres":
        return {"store__url": request.getfixturevalue("database"), "process__split": "false"}
    return {"process__split": "true" if request.param == "two processes" else "false"}


def hand_over(gateway: Gateway, facts: str, to: str, body: bytes = b"{}", **headers: str) -> httpx.Response:
    given = {"holdfast_token": TOKEN, "holdfast_target": to, "holdfast_handoff": facts} | headers
    return gateway.post("", body, **given)


def facts_of(number: int, now: int, *, born: int = 0, attempts: int = 0, due: int | None = None) -> str:
    id = (now << 80 | number).to_bytes(16, "big").hex()
    place = f"born={born or now}; retry=0; attempts={attempts}" + ("" if due is None else f"; due={due}")
    return f"id=msg_{id}; accepted={now}; {place}"


def test_extreme_values_in_the_header_are_handled(
    tmp_path: Path, token: Path, receiver: Receiver, engine: dict[str, object]
) -> None:
    """Where a number or a moment did not fit, what was stored with it ended one replica after the other."""
    receiver.answer = lambda request: 500
    with second(tmp_path, token, **engine) as gateway:
        now = int(time.time() * 1000)
        utmost = facts_of(1, now, attempts=MOST_ATTEMPTS, due=now)
        id = hand_over(gateway, utmost, f"{receiver.url}/most").json()["id"]
        [attempt] = until(lambda: gateway.message(id)["attempts"])
        assert (attempt["number"], attempt["status"]) == (MOST_ATTEMPTS + 1, 500)
        assert gateway.call("POST", "/v1/messages/drop", {"host": key_of(receiver)}).status_code == 200
        assert gateway.call("POST", f"/v1/circuits/{key_of(receiver)}/freeze", {}).status_code == 200
        far = now + FARTHEST - 60_000
        assert hand_over(gateway, facts_of(2, now, born=far), f"{receiver.url}/far").status_code == 202
        assert hand_over(gateway, facts_of(3, now, born=far, due=far), f"{receiver.url}/far").status_code == 202
        status = gateway.get("/status")
        assert (status.status_code, status.json()["store"]["waiting"]) == (200, 2)
        # In a database a message enters its lane's queue a moment after the 202.
        assert until(lambda: gateway.get("/status").json()["earliest_expiry_at"]) > "2100"
        beyond = [
            facts_of(4, now, attempts=MOST_ATTEMPTS + 1),
            facts_of(4, now, born=far * 2),
            facts_of(4, now, due=far * 2),
        ]
        assert [hand_over(gateway, facts, receiver.url).status_code for facts in beyond] == [400] * 3
        assert gateway.stop() == 0


def test_a_known_id_changes_nothing_and_new_ids_are_not_predictable(
    tmp_path: Path, token: Path, receiver: Receiver, engine: dict[str, object]
) -> None:
    with second(tmp_path, token, **engine) as gateway:
        mine = post(gateway, f"{receiver.url}/mine", b"mine", holdfast_delay="1h")
        now = int(time.time() * 1000)
        for id in (mine, "msg_" + (now + 86_000_000 << 80 | 7).to_bytes(16, "big").hex()):
            facts = f"id={id}; accepted={now}; born={now}; retry=0; attempts=0; due={now + 3_600_000}"
            answers = [hand_over(gateway, facts, f"{receiver.url}/theirs", b"theirs") for _ in range(2)]
            assert [answer.status_code for answer in answers] == [202, 202]
            assert answers[1].headers["holdfast-duplicate"] == "true"
        assert gateway.message(mine)["size"] == len(b"mine")
        assert gateway.get("/status").json()["store"]["waiting"] == 2
        gateway.stop()
    with second(tmp_path, token, **engine) as gateway:
        # The next ids come after the one from the future, where there is one clock; nobody can tell which they are.
        first_id, second_id = (int(post(gateway, f"{receiver.url}/{n}", holdfast_delay="1h")[4:], 16) for n in "ab")
        assert second_id - first_id != 1
