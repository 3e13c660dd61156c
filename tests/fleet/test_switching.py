"""What an operator does at one replica holds at all of them."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fleet.replicas import Database
from harness import PATIENCE, Gateway, Received, Receiver, running, until

PER_HOST = 4
WEBHOOKS = 40


@pytest.fixture
def pair(tmp_path: Path, database: str) -> Iterator[tuple[Gateway, Gateway]]:
    keys = {"store__url": database, "delivery__per_host": PER_HOST}
    with running(tmp_path / "here", **keys) as here, running(tmp_path / "there", **keys) as there:
        yield here, there


class Answers:
    """Requests that wait to be answered until they are let go."""

    def __init__(self, receiver: Receiver) -> None:
        self._permits = threading.Semaphore(0)
        receiver.answer = self._wait

    def _wait(self, request: Received) -> int:
        assert self._permits.acquire(timeout=PATIENCE)
        return 200

    def until_at_work(self, replicas: Sequence[Gateway]) -> None:
        """Until all replicas have some. A host that starts slowly has the whole limit after three."""
        self._permits.release(PER_HOST - 1)
        until(lambda: all(replica.get("/status").json()["in_flight"] for replica in replicas))

    def let_go(self) -> None:
        self._permits.release(WEBHOOKS)

    def hold(self) -> None:
        while self._permits.acquire(blocking=False):
            pass


def test_a_freeze_at_one_replica_stops_both_and_an_unfreeze_at_the_other_lets_both_go_on(
    pair: tuple[Gateway, Gateway], receiver: Receiver, database: str
) -> None:
    """Both are at work on one host when it is frozen: what was under way ends, and nothing is claimed any more."""
    here, there = pair
    answers = Answers(receiver)
    ids = {here.post(f"{receiver.url}/{number}").json()["id"] for number in range(WEBHOOKS)}
    key = f"127.0.0.1:{receiver.port}"
    answers.until_at_work(pair)
    assert here.call("POST", f"/v1/circuits/{key}/freeze").json()["changed"]
    answers.let_go()
    until(lambda: Database(database).claimed() == 0)
    assert [replica.get(f"/circuits/{key}").json()["state"] for replica in pair] == ["frozen", "frozen"]
    assert [replica.get("/status").json()["in_flight"] for replica in pair] == [0, 0]
    assert len(receiver.requests) < WEBHOOKS
    answers.hold()
    assert there.call("POST", f"/v1/circuits/{key}/unfreeze").json()["changed"]
    answers.until_at_work(pair)
    answers.let_go()
    receiver.wait_for(lambda requests: {request.id for request in requests} == ids)
    assert len(receiver.requests) == WEBHOOKS
