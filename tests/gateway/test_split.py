"""Ingest in its own process: the two processes end together, and the death of either loses nothing acknowledged.

Tests of what holds with one and with two processes use the fixture `processes`.
"""

import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.crash.load import Book, Load, Post, agent
from tests.gateway.hostile import raw_client, rest, statuses
from tests.support import fork_server, harness
from tests.support.harness import PATIENCE, PLAIN, Gateway, Receiver, running, settings, start, until

ROUTE = "[routes.billing]\nurl = 'https://hooks.example.com'\n"
SENDERS = 6
WATCHED_SECONDS = 2.0
"""How long wake-ups are counted for; nothing is waited for by it."""


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(harness.ALSO, "process__split", "true")


def ingest_process(gateway: Gateway) -> int:
    _, child = gateway.pids
    return child


def is_running(pid: int) -> bool:
    """Not one that ended and that nobody has asked about yet."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for_end(pid: int) -> None:
    until(lambda: not is_running(pid))


def descriptors(pid: int) -> set[str]:
    links = (str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return {link for link in links if link.startswith(("socket:", "/"))}


def deaths(gateway: Gateway) -> list[str]:
    return [event["detail"] for event in gateway.events() if event["event"] == "ingest_process_died"]


# -- two processes -----------------------------------------------------------------------------------------------------


def test_ingest_has_what_it_needs_and_nothing_else(gateway: Gateway) -> None:
    child, parent = ingest_process(gateway), gateway.process.pid
    # The channel's ends are two sockets, and the listening one is ingest's alone.
    assert descriptors(child) & descriptors(parent) <= {str(gateway.log), "/dev/null"}
    assert not [link for link in descriptors(child) if link.startswith(str(gateway.control.parent) + "/")]
    assert gateway.get("/status").json()["pid"] == parent


def test_ingest_has_no_secret_that_it_does_not_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f"{ROUTE}sign = {{ secret_env = 'SIGNS' }}\n")
    monkeypatch.setenv("SIGNS", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    with running(tmp_path / "store", config) as gateway:
        environment = Path(f"/proc/{ingest_process(gateway)}/environ").read_bytes()
        assert b"PATH=" in environment
        assert b"SIGNS" not in environment
        assert b"HOLDFAST_" not in environment


def test_counts_of_the_ingest_process_are_in_status_and_metrics(gateway: Gateway, receiver: Receiver) -> None:
    with httpx.Client(**PLAIN) as client:
        for _ in range(3):
            assert client.post(f"http://{gateway.ingest}/{receiver.url}/hook", content=b"{}").status_code == 202
        assert client.post(f"http://{gateway.ingest}/nonsense").status_code == 400
        assert client.get(f"http://{gateway.ingest}/").status_code == 405
        totals = gateway.get("/status").json()["totals"]
        assert (totals["accepted"], totals["refused"]) == (3, {"no-target": 1, "wrong-method": 1})
        metrics = gateway.get("/metrics").text
    assert "holdfast_ack_duration_seconds_count 3.0" in metrics
    assert 'holdfast_refused_total{reason="no-target"} 1.0' in metrics
    assert 'holdfast_connections_open{listener="ingest"} 1.0' in metrics


@pytest.mark.usefixtures("executed")
def test_both_processes_sleep_when_idle(gateway: Gateway, receiver: Receiver, measured: Callable[[str], None]) -> None:
    gateway.post(f"{receiver.url}/hook")
    receiver.wait_for_one()
    child = ingest_process(gateway)

    def switches() -> int:
        lines = Path(f"/proc/{child}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))

    gateway.get("/status")
    before = switches()
    threading.Event().wait(WATCHED_SECONDS)
    assert switches() - before <= 3
    sizes = [Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0] for pid in gateway.pids]
    measured(f"two processes, idle: RSS in kB of the gateway's and of ingest's {' and '.join(sizes)}")


def test_a_stopped_ingest_process_does_not_block_operators(gateway: Gateway) -> None:
    gateway.post("nonsense")
    assert gateway.get("/status").json()["totals"]["refused"]
    child = ingest_process(gateway)
    os.kill(child, signal.SIGSTOP)
    assert gateway.get("/status").json()["totals"]["refused"]
    assert gateway.get("/metrics").status_code == 200
    os.kill(child, signal.SIGCONT)
    assert gateway.stop() == 0


def test_a_reload_does_not_wait_forever_for_a_stopped_ingest_process(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("")
    with running(tmp_path / "store", config=file) as gateway:
        child = ingest_process(gateway)
        os.kill(child, signal.SIGSTOP)
        file.write_text(f'[routes.billing]\nurl = "{receiver.url}/in"\n')
        answer = gateway.call("POST", "/v1/reload")
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:holdfast:problem:reload-unfinished"
        assert "the ingest process" in answer.json()["detail"]
        told = [event for event in gateway.events() if event["event"] in ("reloaded", "reload_unfinished")]
        assert [(event["event"], event["changed"]) for event in told] == [("reload_unfinished", ["routes.billing"])]
        os.kill(child, signal.SIGCONT)
        assert gateway.call("POST", "/v1/reload").json() == {"changed": [], "needs_restart": []}
        assert gateway.post("to/billing/x").status_code == 202, "it has taken over what it was given meanwhile"
        assert receiver.wait_for_one().path == "/in/x"
        assert gateway.stop() == 0


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_large_bodies_pass_beside_small_ones(tmp_path: Path, receiver: Receiver) -> None:
    """Up to the limit, also above what may be under way at once; many of 64 KiB at the same time."""
    chance = random.Random(0)
    sizes = [64 << 10] * 48 + [1 << 20] * 4 + [12 << 20] + [10] * 20
    bodies = {f"/{number}": chance.randbytes(size) for number, size in enumerate(chance.sample(sizes, len(sizes)))}
    with running(tmp_path / "store", ingest__max_body="12MiB") as gateway:
        with ThreadPoolExecutor(16) as pool:
            answers = pool.map(lambda path: gateway.post(receiver.url + path, bodies[path]).status_code, bodies)
            assert set(answers) == {202}
        assert gateway.post(receiver.url + "/over", b"x" * ((12 << 20) + 1)).status_code == 413
        came = receiver.wait_for(lambda requests: len(requests) == len(bodies))
    assert {request.path: request.body for request in came} == bodies


# -- signals -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_reaches_both_and_the_gateway_drains(tmp_path: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", drain__timeout="30s") as gateway:
        child = ingest_process(gateway)
        gateway.post(f"{receiver.url}/first")
        assert entered.wait(PATIENCE)
        for pid in (child, gateway.process.pid):
            os.kill(pid, signal.SIGINT)
        until(lambda: gateway.get("/status").json()["draining"])
        second = gateway.post(f"{receiver.url}/second")
        assert second.status_code == 202
        let_go.set()
        assert gateway.process.wait(PATIENCE) == 0
        assert not is_running(child)
        assert not deaths(gateway)
    assert {request.path for request in receiver.requests} == {"/first", "/second"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_ingest_process_ignores_signals(gateway: Gateway, receiver: Receiver, number: signal.Signals) -> None:
    os.kill(ingest_process(gateway), number)
    assert gateway.post(f"{receiver.url}/hook").status_code == 202
    assert gateway.stop() == 0
    assert not [event for event in gateway.events() if event["event"] == "reloaded"]


# -- either dies -------------------------------------------------------------------------------------------------------


def posts(book: Book, receiver: Receiver, sender: str) -> Iterator[Post]:
    for number in count():
        while book.unknown:
            with suppress(IndexError):
                yield book.unknown.popleft()
        key = f"{sender}-{number}" if number % 2 else None
        yield Post(f"{receiver.url}/{sender}", b"x" * (number % 3 * 1_500), key)


def loaded(gateway: Gateway, book: Book, receiver: Receiver, life: int) -> Load:
    return Load(gateway, book, life, [posts(book, receiver, f"{life}-{number}") for number in range(SENDERS)], 1_000)


@pytest.mark.parametrize("whom", ["ingest", "gateway"])
def test_the_death_of_one_process_ends_the_other_and_loses_nothing(
    tmp_path: Path, receiver: Receiver, whom: str
) -> None:
    book, store, lives = Book(), tmp_path / "store", 2
    book.watch(receiver, lambda request: 200)
    for life in range(lives):
        book.killed.add(life)
        with running(store, **agent(life)) as gateway:
            child = ingest_process(gateway)
            load = loaded(gateway, book, receiver, life)
            load.wait_for_some()
            os.kill(child if whom == "ingest" else gateway.process.pid, signal.SIGKILL)
            status = gateway.process.wait(PATIENCE)
            wait_for_end(child)
            load.stop()
            if whom == "ingest":
                assert (status, deaths(gateway)) == (5, ["killed by signal 9"] * (life + 1))
            assert "Traceback" not in gateway.log.read_text()
    with running(store, **agent(lives)) as gateway:
        Load(gateway, book, lives, [list(book.unknown)]).wait()
        book.wait_for_all()
        assert gateway.stop() == 0
    book.check_keys()
    assert book.repeats() <= book.in_flight_at_kills()


def test_attempts_in_flight_are_interrupted_when_the_ingest_process_dies(tmp_path: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", drain__timeout="1h") as gateway:
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        assert entered.wait(PATIENCE)
        os.kill(ingest_process(gateway), signal.SIGKILL)
        assert gateway.process.wait(PATIENCE) == 5
    let_go.set()
    with running(tmp_path / "store") as gateway:
        until(lambda: gateway.message(id)["state"] == "delivered")
        errors = [attempt["error"] for attempt in gateway.message(id)["attempts"]]
    assert errors == ["interrupted", None]


def test_waiting_clients_get_503_when_the_gateway_dies(gateway: Gateway, receiver: Receiver) -> None:
    child = ingest_process(gateway)
    with raw_client(gateway.ingest) as client:
        gateway.process.send_signal(signal.SIGSTOP)
        client.sendall(f"POST /{receiver.url}/hook HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
        until(lambda: has_been_read(client))
        gateway.kill()
        said = rest(client)
    assert statuses(said) == [503]
    assert b"urn:holdfast:problem:store-failed" in said
    assert b"\r\nretry-after: " in said
    wait_for_end(child)


def has_been_read(client: socket.socket) -> bool:
    """Whether everything that a client of this machine has sent was read by the other side."""
    ours, theirs = (f"0100007F:{name[1]:04X}" for name in (client.getsockname(), client.getpeername()))
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    return any(row[1:3] == [theirs, ours] and row[4].endswith(":00000000") for row in rows)


def test_an_ingest_process_that_dies_at_its_start_ends_the_gateway(tmp_path: Path) -> None:
    """Python itself runs this file first in every process that has it in its path."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'holdfast.split.child' in sys.orig_argv: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = settings(tmp_path / "store") | {"PYTHONPATH": str(tmp_path)}
    ended = fork_server.run("run", env=environment)
    assert (ended.returncode, ended.stdout) == (5, "")
    assert '"ingest_process_died"' in ended.stderr
    assert "Traceback" not in ended.stderr


HOSTILE = """
import os, pickle, socket, struct, sys
if "holdfast.split.child" in sys.orig_argv:
    channel = socket.socket(fileno=int(sys.orig_argv[-2]))
    class Code:
        def __reduce__(self):
            return os.mkdir, (os.environ["PROOF"],)
    import msgpack
    for content in ([6, None], {said}):
        packed = content if isinstance(content, bytes) else msgpack.packb(content)
        channel.sendall(struct.pack(">I", len(packed)) + packed)
    while channel.recv(65536):
        pass
    os._exit(0)
"""


@pytest.mark.parametrize(
    "said",
    [
        "[0, pickle.dumps(Code())]",
        "[99, None]",
        "[8, [{}, [], 0, 0]]",
        "[7, [[1, 2, 3, 4, 5, 6]]]",
        "b'\\xc1' * 9",
        "b'\\x91' * 5_000",
    ],
)
def test_an_invalid_frame_of_the_ingest_process_ends_both_and_runs_nothing(tmp_path: Path, said: str) -> None:
    """As if a stranger had taken it over: Python runs this file first in every process that has it in its path."""
    proof = tmp_path / "proof"
    (tmp_path / "sitecustomize.py").write_text(HOSTILE.replace("{said}", said))
    environment = settings(tmp_path / "store") | {"PYTHONPATH": str(tmp_path), "PROOF": str(proof)}
    ended = fork_server.run("run", env=environment)
    assert not proof.exists()
    assert ended.returncode == 5
    assert "Traceback" not in ended.stderr
    assert "it sent a malformed frame" in ended.stderr


def test_the_port_is_free_when_both_processes_have_ended(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store") as gateway:
        address, child = gateway.ingest, ingest_process(gateway)
        gateway.kill()
        wait_for_end(child)
    with running(tmp_path / "store", listen__ingest=address) as gateway:
        assert gateway.ingest == address
        assert gateway.post(f"{receiver.url}/hook").status_code == 202


def test_an_address_in_use_is_reported_before_the_ingest_process_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(AssertionError, match="it is in use"):
            start(tmp_path / "store", listen__ingest=f"127.0.0.1:{taken.getsockname()[1]}")
