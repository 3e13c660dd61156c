"""What operators ask costs the same with a million messages waiting, and ingest does not feel it.

    make bench-operators [COUNT=1000000]

Prints the time of each question with the backlog and without, 20 questions a second while webhooks flow, and the ack
latency with and without them. The first answer stands apart: the first scrape loads the metrics library.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import httpx

from tests.support.harness import Gateway, Receiver, running

FROZEN = "frozen.example:443"
ROUNDS = 40
QUESTIONS = ("/status", "/circuits", "/metrics", "/v1/messages?limit=100", "/v1/messages?state=held&limit=100")


class Flow:
    """One client that posts one webhook after another and keeps how long each took."""

    def __init__(self, gateway: Gateway, target: str) -> None:
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(gateway, target))
        self._thread.start()

    def _run(self, gateway: Gateway, target: str) -> None:
        with httpx.Client(trust_env=False) as client:
            while not self._stop.is_set():
                began = perf_counter()
                client.post(f"http://{gateway.ingest}/{target}", content=b"x" * 1024).raise_for_status()
                self.seconds.append(perf_counter() - began)

    def stop(self) -> list[float]:
        self._stop.set()
        self._thread.join()
        return self.seconds


def timed(ask: Callable[[], httpx.Response]) -> float:
    began = perf_counter()
    ask().raise_for_status()
    return perf_counter() - began


def measure(store: Path, receiver: Receiver) -> tuple[dict[str, list[float]], list[float], list[float]]:
    """Times of each question while webhooks flow; acks without questions, and with them."""
    keys = {"store__max_size": "16GiB", "store__host_share": "1.0"}
    with running(store, **keys) as gateway:
        flow = Flow(gateway, f"{receiver.url}/hook")
        threading.Event().wait(3)
        alone = flow.stop()
        transport = httpx.HTTPTransport(uds=str(gateway.control))
        flow = Flow(gateway, f"{receiver.url}/hook")
        with (
            httpx.Client(transport=transport, timeout=60) as control,
            httpx.Client(trust_env=False, timeout=60) as status,
        ):
            times: dict[str, list[float]] = {question: [] for question in QUESTIONS}
            pause = threading.Event()
            for _ in range(ROUNDS):
                for question in QUESTIONS:
                    client = control if question.startswith("/v1") else status
                    base = "http://holdfast" if question.startswith("/v1") else f"http://{gateway.status}"
                    pause.wait(0.05)
                    times[question].append(timed(lambda client=client, base=base, q=question: client.get(base + q)))
        return times, alone, flow.stop()


def line(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds[1:])
    p99 = ordered[int(len(ordered) * 0.99)]
    figures = (seconds[0], statistics.median(ordered), p99)
    return f"{name:42} " + " ".join(f"{figure * 1000:8.1f} ms" for figure in figures)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    receiver = Receiver()
    with tempfile.TemporaryDirectory() as folder:
        for waiting in (0, count):
            store = Path(folder) / f"store{waiting}"
            fill = [sys.executable, str(Path(__file__).parent / "fill.py"), str(store), str(waiting), FROZEN]
            subprocess.run(fill, check=True)
            times, alone, asked = measure(store, receiver)
            print(f"\n{waiting:,} waiting{'':32} {'first':>8}    {'median':>8}    {'p99':>8}")
            for question, seconds in times.items():
                print(line(question, seconds))
            print(line("ack, nobody asks", alone))
            print(line("ack, while asked", asked))
    receiver.close()


if __name__ == "__main__":
    main()
