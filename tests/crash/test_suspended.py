"""A process that is stopped for a while continues as before, but for the time."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.crash.load import Book, Load, Post, agent
from tests.support.harness import PATIENCE, Gateway, Received, Receiver, running, until

STOPPED_FOR = (0.3, 1.0)
"""Seconds under load; nothing is waited for by them."""


@contextmanager
def suspended(gateway: Gateway) -> Iterator[None]:
    """Every thread of the process stands still."""
    gateway.process.send_signal(signal.SIGSTOP)
    status = Path(f"/proc/{gateway.process.pid}/stat")
    until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    yield
    gateway.process.send_signal(signal.SIGCONT)


def test_a_suspended_process_continues_under_load(
    tmp_path: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    book = Book()
    book.watch(receiver, lambda request: 500 if request.id.endswith(("0", "5")) and coming_first(request) else 200)
    met: set[str] = set()

    def coming_first(request: Received) -> bool:
        new = request.id not in met
        met.add(request.id)
        return new

    with running(tmp_path / "store", retry__base="300ms", **agent(0)) as gateway:
        load = Load(gateway, book, 0, [[Post(f"{receiver.url}/hook", b"x")] * 200] * 3, at_most=200)
        load.wait_for_some()
        for seconds in STOPPED_FOR:
            with suspended(gateway):
                threading.Event().wait(seconds)
            before = len(book.acknowledged)
            until(lambda before=before: len(book.acknowledged) > before or len(book.acknowledged) == 600)
        load.wait()
        book.wait_for_all()
        assert gateway.stop() == 0
        assert gateway.events()[-1]["waiting"] == 0
    assert len(book.ids) == 600
    assert book.repeats() == 0
    sent, failed = Counter(seen.id for seen in book.seen), {seen.id for seen in book.seen if seen.status == 500}
    measured(f"suspended {len(STOPPED_FOR)} times under load: 600 delivered, {len(failed)} by a retry, none twice")
    assert sent == Counter(book.ids) + Counter(failed)


def test_an_attempt_whose_deadline_passed_is_a_time_out_and_is_repeated(tmp_path: Path, receiver: Receiver) -> None:
    """Its answer may have come in time: read too late it is a timeout, and the message comes again."""
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", delivery__timeout="1s", retry__base="200ms") as gateway:
        id = gateway.post(f"{receiver.url}/slow").json()["id"]
        assert entered.wait(PATIENCE)
        with suspended(gateway):
            let_go.set()
            receiver.wait_for_one()
            threading.Event().wait(1.1)
        until(lambda: gateway.message(id)["state"] == "delivered")
        attempts = gateway.message(id)["attempts"]
    assert [attempt["error"] for attempt in attempts] == ["timeout"] * (len(attempts) - 1) + [None]
    assert len(receiver.requests) == len(attempts)


def test_messages_that_came_due_are_sent_once_within_limits(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    rules = {"retry__base": "1s", "circuit__min_attempts": 0, "delivery__per_host": 4}
    opened, most, let_go, lock = 0, 0, threading.Event(), threading.Lock()

    def retried(request: Received) -> int:
        nonlocal opened, most
        with lock:
            opened += 1
            most = max(most, opened)
        let_go.wait(PATIENCE)
        with lock:
            opened -= 1
        return 200

    with running(tmp_path / "store", **rules) as gateway:
        ids = [gateway.post(f"{receiver.url}/{number}").json()["id"] for number in range(8)]
        receiver.wait_for(lambda requests: {request.id for request in requests} == set(ids))
        with suspended(gateway):
            receiver.answer = retried
            threading.Event().wait(1.1)
        until(lambda: opened >= 2)
        assert gateway.get("/status").json()["in_flight"] == 2, "half of per_host is for retries"
        let_go.set()
        until(lambda: all(gateway.message(id)["state"] == "delivered" for id in ids))
    assert most == 2
    # On a busy machine some were tried a second time before the stop.
    assert Counter(request.id for request in receiver.requests if request.status == 200) == Counter(ids)


def test_connections_closed_by_receivers_are_no_failed_attempts(tmp_path: Path, receiver: Receiver) -> None:
    closed = threading.Semaphore(0)
    handler = receiver._server.RequestHandlerClass
    finish = handler.finish

    def finishing(self) -> None:
        finish(self)
        closed.release()

    handler.timeout, handler.finish = 0.2, finishing
    with running(tmp_path / "store", retry__base="1h") as gateway:
        first = gateway.post(f"{receiver.url}/first").json()["id"]
        until(lambda: gateway.message(first)["state"] == "delivered")
        with suspended(gateway), ThreadPoolExecutor(1) as pool:
            assert closed.acquire(timeout=PATIENCE)
            posted = pool.submit(gateway.post, f"{receiver.url}/second")
            gateway.process.send_signal(signal.SIGCONT)
            second = posted.result(PATIENCE).json()["id"]
        until(lambda: gateway.message(second)["state"] == "delivered")
        assert len(gateway.message(second)["attempts"]) == 1
