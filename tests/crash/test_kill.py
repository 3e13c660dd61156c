"""kill -9 at any moment: whatever was acknowledged is delivered in the end."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from harness import Gateway, Receiver, running

ROUNDS = int(os.environ.get("HOLDFAST_KILLS", "6"))
SENDERS = 4


class Load:
    """Clients that post until they are stopped, and keep what was acknowledged."""

    def __init__(self, gateway: Gateway, target: str) -> None:
        self.acknowledged: list[str] = []
        self._stop = threading.Event()
        self._some = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(gateway, target)) for _ in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def _send(self, gateway: Gateway, target: str) -> None:
        with httpx.Client(trust_env=False, timeout=10) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(f"http://{gateway.ingest}/{target}", content=b"x" * 500)
                except httpx.HTTPError:
                    return
                if answer.status_code == 202:
                    self.acknowledged.append(answer.json()["id"])
                    self._some.set()

    def wait_for_some(self) -> None:
        assert self._some.wait(10)

    def stop(self) -> list[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.acknowledged


def test_nothing_acknowledged_is_lost_by_kills(
    tmp_path: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    receiver.answer = lambda request: 200 if hash(request.id) % 4 else 500
    acknowledged: set[str] = set()
    for _ in range(ROUNDS):
        with running(tmp_path / "store", retry__base="50ms") as gateway:
            load = Load(gateway, f"{receiver.url}/hook")
            load.wait_for_some()
            threading.Event().wait(chance.uniform(0, 0.5))
            gateway.kill()
            acknowledged |= set(load.stop())
    receiver.answer = lambda request: 200
    with running(tmp_path / "store", retry__base="50ms"):
        receiver.wait_for(
            lambda requests: acknowledged <= {request.id for request in requests if request.status == 200}
        )
    delivered = [request.id for request in receiver.requests if request.status == 200]
    repeats = len(delivered) - len(set(delivered))
    measured(f"{ROUNDS} kills (seed {seed}): {len(acknowledged)} acknowledged, all delivered, {repeats} twice")
    assert len(acknowledged) > ROUNDS
