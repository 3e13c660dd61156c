"""kill -9 at any moment: everything acknowledged is delivered, and only messages in flight are sent twice.

`HOLDFAST_KILLS` sets the number of kills, `HOLDFAST_SEED` repeats a run's choices.
"""

import itertools
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.crash.load import Book, Load, Post, agent, command
from tests.support.harness import HOLDFAST, PATIENCE, Gateway, Received, Receiver, running, settings
from tests.support.repetitions import amount

KILLS = {1: amount(10, 50, "HOLDFAST_KILLS"), 2: amount(4, 12, "HOLDFAST_KILLS")}
"""By the number of the gateway's processes."""
SENDERS = 4
TO_THE_HANGING = 20
"""One message in so many: a host that hangs needs few to be full."""

RULES = {"retry__base": "50ms", "circuit__min_attempts": 0, "circuit__disable_after": 0}
"""Soon again, and no circuit that lets the messages of a failing host wait."""


class Hosts:
    """Two that are fine, one that fails now and then, one that hangs until it is let go."""

    def __init__(self, book: Book, chance: random.Random) -> None:
        self._receivers = [Receiver() for _ in range(4)]
        *fine, flaky, hanging = self._receivers
        self.urls = [receiver.url for receiver in (*fine, flaky)]
        self.hanging_url = hanging.url
        self._let_go = threading.Event()
        for receiver in fine:
            book.watch(receiver, lambda request: 200)
        book.watch(flaky, lambda request: 500 if chance.random() < 0.25 else 200)
        book.watch(hanging, self._hang)

    def _hang(self, request: Received) -> int:
        self._let_go.wait(PATIENCE)
        return 200

    def gateway_is_gone(self) -> None:
        """What hung acts in the end, and nobody hears its answer."""
        self._let_go.set()
        self._let_go = threading.Event()

    def recover(self) -> None:
        self._let_go.set()

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()


def posts(book: Book, hosts: Hosts, chance: random.Random, sender: str) -> Iterator[Post]:
    """Half of them with a key. First those whose fate is unknown, now and then one that was acknowledged before."""
    sent: Post | None = None
    for number in itertools.count():
        with suppress(IndexError):
            while True:
                yield book.unknown.popleft()
        url = hosts.hanging_url if chance.randrange(TO_THE_HANGING) == 0 else chance.choice(hosts.urls)
        key = f"{sender}-{number}" if chance.random() < 0.5 else None
        post = Post(f"{url}/{sender}", b"x" * chance.choice([2, 500, 3_000]), key)
        yield post
        if sent is not None and chance.random() < 0.1:
            yield sent
        if key is not None:
            sent = post


def kill_while_starting(store: Path, chance: random.Random, life: int) -> None:
    with (store.parent / f"{store.name}.log").open("a") as log:
        process = subprocess.Popen(
            [HOLDFAST, "run"], env=settings(store, **RULES, **agent(life)), stdout=subprocess.DEVNULL, stderr=log
        )
    threading.Event().wait(chance.uniform(0, 0.4))
    process.kill()
    process.wait(PATIENCE)


def kill_under_load(gateway: Gateway, load: Load, chance: random.Random) -> None:
    load.wait_for_some()
    threading.Event().wait(chance.uniform(0, 0.3))
    if chance.random() < 0.2:
        gateway.process.send_signal(signal.SIGTERM)
        threading.Event().wait(chance.uniform(0, 0.1))
    gateway.kill()


def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, processes: int, measured: Callable[[str], None]) -> None:
    kills = KILLS[processes]
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(1 << 32)))
    print(f"HOLDFAST_SEED={seed}")
    chance, book, store = random.Random(seed), Book(), tmp_path / "store"
    hosts = Hosts(book, random.Random(seed))
    for life in range(kills):
        book.killed.add(life)
        if life and chance.random() < 0.15:
            kill_while_starting(store, chance, life)
            continue
        with running(store, **RULES, **agent(life)) as gateway:
            senders = [f"{life}-{number}" for number in range(SENDERS)]
            load = Load(gateway, book, life, [posts(book, hosts, random.Random(f"{seed}-{it}"), it) for it in senders])
            kill_under_load(gateway, load, chance)
            load.stop()
        hosts.gateway_is_gone()
    hosts.recover()
    with running(store, **RULES, **agent(kills)) as gateway:
        Load(gateway, book, kills, [list(book.unknown)]).wait()
        book.wait_for_all()
        assert gateway.stop() == 0
    hosts.close()
    again, repeats, in_flight = book.check_keys(), book.repeats(), book.in_flight_at_kills()
    measured(
        f"{kills} kills (seed {seed}): {len(book.ids)} acknowledged, all delivered; {repeats} deliveries came again "
        f"of {in_flight} in flight at a kill; {again} posts came again under their key"
    )
    assert len(book.ids) > kills
    assert repeats <= in_flight
    assert command(store, "fsck").returncode == 0
