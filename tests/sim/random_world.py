"""A world from one seed: apps that send, receivers with behaviours, operators, and faults of the gateway.

Between two runs of the gateway, and at the end, the disk is compared with the observed events.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

import trio

from holdfast.config import build
from holdfast.core.errors import StoreError
from holdfast.http.exceptions import Problem
from holdfast.http.request_response import Request as HttpRequest
from tests.sim.faults import Blow, StepCounter
from tests.sim.overdue import overdue
from tests.sim.process import WatchedWorld
from tests.sim.receivers import Receiver
from tests.sim.settings import HOSTS
from tests.sim.witness import short

INGEST = ("127.0.0.1", 8800)


@dataclass
class Sent:
    """A request of an app's with an Idempotency-Key: it may be repeated. `id` is the first answer's."""

    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    id: str | None = None
    at: int = 0


class RandomWorld(WatchedWorld):
    """`live` runs it to its end; `witness.faults` says what was broken."""

    def prepare(self, seed: int, steps: StepCounter) -> None:
        super().prepare(seed, steps)
        self.unit = 0.3 if self.small else 84.8
        self.horizon = self.random.uniform(1_000, 5_000) if self.small else self.random.uniform(40_000, 600_000)
        self.hosts = self.random.sample(HOSTS, self.random.randrange(1, len(HOSTS) + 1))
        self.receivers = {host: Receiver(Random(self.random.random()), self.horizon, self.unit) for host in HOSTS}
        self.scripts = dict(self.receivers)
        self.keyed: list[Sent] = []
        self.acknowledged: set[str] = set()

    # -- what goes on meanwhile ----------------------------------------------------------------------------------------

    async def acts(self) -> None:
        number, seconds = self.random.randrange(4, 14), self.horizon / self.runs * self.random.uniform(0.3, 1.5)
        async with trio.open_nursery() as apps:
            for _ in range(number):
                await self._act(apps)
                await trio.sleep(self.random.expovariate(number / seconds))
                if self.witness.alive:
                    for text in overdue(self.witness):
                        self.witness.check(False, text)

    async def _act(self, apps: trio.Nursery) -> None:
        dice = self.random.random()
        if dice < 0.7:
            host = self.random.choice(self.hosts)
            crowd = 130 if not self.small and self.random.random() < 0.1 else 12
            for _ in range(self.random.choice((1, 1, 2, crowd))):
                apps.start_soon(self.send, self._composed(host))
        elif dice < 0.78 and self.keyed:
            apps.start_soon(self.send, self.random.choice(self.keyed))
        else:
            apps.start_soon(self.operate)

    def _composed(self, host: str) -> Sent:
        """A request as an app may send it; more of it than anything else is plain."""
        pick = self.random.choice
        path = pick(("/one", "/two?x=1", "/three"))
        target = f"/http://{host.removesuffix(':80')}{path}"
        if self.random.random() < 0.2:
            target = pick(("/to/quick/x", "/to/paced"))
        headers = [(b"host", b"127.0.0.1:8800")]
        if self.random.random() < 0.15:
            delay = f"{int(self.unit * 1000 * pick((1, 30, 900)))}ms"
            headers.append((b"holdfast-delay", delay.encode()))
        sent = Sent(target.encode(), headers, b"x" * pick((2, 2, 200, 5_000)))
        if self.random.random() < 0.2:
            headers.append((b"idempotency-key", b"key %d" % len(self.keyed)))
            self.keyed.append(sent)
        return sent

    async def send(self, sent: Sent) -> None:
        """One POST, and what its answer promises."""
        witness = self.witness
        request = HttpRequest("POST", sent.target, list(sent.headers), sent.body, INGEST)
        try:
            answer = bytes(await self.ingest(request))
        except Problem as problem:
            witness.note(f"refused {problem.status}")
            witness.check(problem.status in (503, 507), f"refused: {problem}")
            return
        if not witness.alive:
            return
        head = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        id = next(line.partition(": ")[2] for line in head if line.startswith("holdfast-message-id"))
        witness.note(f"acknowledged {short(id)}")
        self.acknowledged.add(id)
        witness.check(id in witness.messages, f"{id}: acknowledged, and not on disk")
        within = self.clock.now() - sent.at < self.config.ingest.idempotency and not witness.purged
        witness.check(sent.id in (None, id) or not within, f"{sent.id}: its key now answers {id}")
        if sent.id is None or not within:
            sent.id, sent.at = id, self.clock.now()

    async def operate(self) -> None:
        """Something that an operator does, and whether its answer can be true."""
        witness, pick = self.witness, self.random.choice
        lane = pick(sorted(witness.circuits) or ["a.test:80"])
        id = pick(sorted(witness.messages) or ["msg_" + "0" * 32])
        call, body = pick(
            (
                (f"POST /v1/circuits/{quote(lane, safe='')}/freeze", {}),
                (f"POST /v1/circuits/{quote(lane, safe='')}/unfreeze", {"replay_dead": pick((True, False))}),
                (f"POST /v1/circuits/{quote(lane, safe='')}/unfreeze", {}),
                (f"POST /v1/circuits/{quote(lane, safe='')}/probe", {}),
                (f"POST /v1/messages/{id}/retry", {}),
                (f"POST /v1/messages/{id}/retry", {}),
                (f"DELETE /v1/messages/{id}", {}),
                ("POST /v1/dead/replay", {}),
                ("POST /v1/dead/replay", {"host": lane}),
                ("POST /v1/reload", {}),
                ("POST /v1/messages/drop", {"host": lane, "limit": 2}),
            )
        )
        witness.note(f"operator {call} {body}")
        if call.endswith("/probe") and lane in witness.circuits:
            witness.circuits[lane].probe_asked = True
        status = await self._call(call, body)
        if witness.alive:
            witness.note(f"operator's answer {status}")

    async def _call(self, call: str, body: dict[str, Any]) -> int:
        method, _, target = call.partition(" ")
        content = json.dumps(body).encode() if body else b""
        try:
            answer = await self.control(HttpRequest(method, target.encode(), [], content, "control.sock"))
        except Problem as problem:
            if call.endswith("/probe"):
                self._take_back_probe(call)
            return problem.status
        except StoreError:
            return 503
        return answer.status

    def _take_back_probe(self, call: str) -> None:
        for circuit in self.witness.circuits.values():
            if quote(circuit.key, safe="") in call:
                circuit.probe_asked = False

    # -- from its beginning to its end ---------------------------------------------------------------------------------

    async def live(self) -> None:
        """Some runs of the gateway with what befalls it, then a last one in which every receiver is well."""
        self.runs = self.random.randrange(1, 5)
        for _ in range(self.runs):
            await self.run(self.acts, clean=self._choose_fate())
            if self.witness.faults:
                return
            await trio.sleep(0.001)
            if self.random.random() < 0.6:
                await trio.sleep(self.random.expovariate(4 / self.horizon))
            if self.random.random() < 0.25:
                self.wall_offset += round(self.random.gauss(0, self.horizon * 300))
        for receiver in self.receivers.values():
            receiver.healed = True
        self.engine.blow = None
        await self.run(self.until_quiet, clean=True)
        self._check_end()

    def _choose_fate(self) -> bool:
        """How the next run ends, if not before by a shutdown; whether that is the way."""
        fate = self.random.choice(("shutdown", "shutdown", "cut at a step", "cut at the end", "commit", "commit"))
        self.engine.blow = None
        if fate == "cut at a step":
            self.steps.countdown = int(10 ** self.random.uniform(0, 3.7))
        elif fate == "commit":
            self.engine.blow = self.random.choice(tuple(Blow))
            self.engine.countdown = int(10 ** self.random.uniform(0, 2.5))
        return fate != "cut at the end"

    async def until_quiet(self) -> None:
        """Enable everything, and wait until nothing waits any more."""
        await trio.sleep(5)
        for key in sorted(self.witness.circuits):
            await self._call(f"POST /v1/circuits/{quote(key, safe='')}/unfreeze", {})
        pause = 10.0
        while pause < 4_000_000 and any(message.waiting for message in self.witness.messages.values()):
            await trio.sleep(pause)
            pause *= 1.6
            for text in overdue(self.witness):
                self.witness.check(False, text)
        await trio.sleep(10)
        self.witness.check(not self.delivery.control.attempts_in_flight, "attempts in flight when all was done")
        self.witness.check(not self.lanes.live, f"lanes in memory when all was done: {sorted(self.lanes.live)}")
        self.witness.check(not self.lanes.memory.used, "bodies in memory when all was done")

    def _check_end(self) -> None:
        for message in self.witness.messages.values():
            self.witness.check(not message.waiting, f"{message.id}: left behind, {message.now}")
        for id in sorted(self.acknowledged):
            self.witness.check(id in self.witness.messages, f"{id}: acknowledged, and never on disk")


def make(seed: int, steps: StepCounter) -> RandomWorld:
    it = RandomWorld(build({}))
    it.prepare(seed, steps)
    return it
