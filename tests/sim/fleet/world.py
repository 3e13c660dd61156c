"""A whole world of replicas on one database from one seed: apps, receivers, operators, and what befalls the replicas.

It lasts a minute or two; then everything is well, and nothing may be left behind.
"""

import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from urllib.parse import quote

import trio

from answers import GivenAnswer
from holdfast.config import build
from holdfast.core.errors import StoreError
from holdfast.core.fleet import LEASE
from holdfast.http.errors import ExchangeTimeout
from holdfast.http.message import Request as HttpRequest
from holdfast.http.problem import Problem
from sim.fleet.audit import Audit
from sim.fleet.lines import Locks, StepsClock
from sim.fleet.replica import Replica
from sim.fleet.settings import HOSTS, UNIT, sections
from sim.fleet.witness import FleetWitness
from sim.random_world import INGEST, Sent
from sim.receivers import Receiver
from sim.witness import short
from sim.world import START, Request

ANSWERED_WITHIN = 45.0
"""Seconds after which whoever asked something must have heard, stops and outages included."""
LONGEST = 300.0
"""Seconds after which nothing may be left behind once everything is well."""


class FleetWorld:
    """`live` runs it to its end; `witness.faults` says what was broken. `calm`: nothing befalls the replicas."""

    def __init__(self, seed: int, url: str) -> None:
        self.random = Random(seed)
        self.url = url
        self.began = trio.current_time()
        self.clock = StepsClock(START)
        self.config = build(sections(self.random))
        self.max_size = self.random.choice((1 << 30, 1 << 30, 1 << 30, 300_000))
        self.witness = FleetWitness(self.config, self.clock.now)
        self.stepped = self.random.random() < 0.6
        self.calm = self.random.random() < 0.2
        self.horizon = self.random.uniform(20, 60)
        self.hosts = self.random.sample(HOSTS, self.random.randrange(1, len(HOSTS) + 1))
        self.receivers = {host: Receiver(Random(self.random.random()), self.horizon, UNIT) for host in HOSTS}
        self.replicas: list[Replica] = []
        self.keyed: list[Sent] = []
        self.acknowledged: set[str] = set()
        self._made = 0
        self._quiet = False

    @property
    def now(self) -> float:
        return round(trio.current_time() - self.began, 3)

    # -- from its beginning to its end --------------------------------------------------------------------------------

    async def live(self) -> None:
        self.locks = Locks(self.url)
        try:
            async with trio.open_nursery() as self.nursery:
                await self.start_replica()
                self.audit = self.witness.audit = Audit(self.url, self.witness)
                for _ in range(self.random.randrange(3)):
                    await self.start_replica()
                await self._act()
                await self._until_quiet()
                self.nursery.cancel_scope.cancel()
        finally:
            self.locks.close()
            if self.witness.audit is not None:
                self.audit.close()

    async def _act(self) -> None:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(self.horizon):
                async with trio.open_nursery() as acts:
                    acts.start_soon(self._every, 1.0, self._look)
                    acts.start_soon(self._every, self.random.choice((0.3, 1.0)), self._send_some, nursery)
                    acts.start_soon(self._every, self.random.choice((1.0, 4.0)), self._operate, nursery)
                    if not self.calm:
                        acts.start_soon(self._every, self.random.choice((3.0, 8.0)), self._befall, nursery)
            nursery.cancel_scope.deadline = trio.current_time() + 60

    async def _every(self, seconds: float, act: Callable[..., Awaitable[None]], *terms: Any) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1 / seconds))
            await act(*terms)

    async def _look(self) -> None:
        self.audit.look([replica for replica in self.replicas if not replica.plight.killed])

    async def _until_quiet(self) -> None:
        """Everything is well from now on; circuits are enabled, and nothing may be left behind."""
        self.witness.note("all is well")
        for receiver in self.receivers.values():
            receiver.healed = True
        if not self.replicas:
            await self.start_replica()
        for replica in self.replicas:
            replica.mend()
            replica.go_on()
        await trio.sleep(LEASE / 1000 + 4)
        ends = trio.current_time() + LONGEST
        while trio.current_time() < ends and not self.witness.faults and self._waits():
            for key in sorted(self.witness.circuits):
                await self.call(self._any(), f"POST /v1/circuits/{quote(key, safe='')}/unfreeze", {})
            await trio.sleep(5)
            await self._look()
        await trio.sleep(3)
        await self._look()
        self._check_memory()
        self.audit.check_end()
        for id in sorted(self.acknowledged):
            self.witness.check(id in self.witness.messages, f"{id}: acknowledged, and never in the database")

    def _waits(self) -> bool:
        return any(message.waiting for message in self.witness.messages.values())

    def _check_memory(self) -> None:
        for replica in self.replicas:
            live = sorted(replica.roster.live)
            self.witness.check(not live, f"{replica.name}: lanes in memory when all was done: {live}")
            self.witness.check(not replica.roster.bytes_held, f"{replica.name}: bodies in memory when all was done")

    # -- apps and operators -------------------------------------------------------------------------------------------

    def _any(self) -> Replica:
        return self.random.choice([replica for replica in self.replicas if replica.serves])

    async def _send_some(self, nursery: trio.Nursery) -> None:
        if not any(replica.serves for replica in self.replicas):
            return
        if self.keyed and self.random.random() < 0.15:
            again = self.random.choice(self.keyed)
            for _ in range(2):
                nursery.start_soon(self.send, self._any(), again)
            return
        host = self.random.choice(self.hosts)
        for _ in range(self.random.choice((1, 1, 2, 6, 12))):
            nursery.start_soon(self.send, self._any(), self._composed(host))

    def _composed(self, host: str) -> Sent:
        pick = self.random.choice
        target = f"/http://{host.removesuffix(':80')}{pick(('/one', '/two'))}"
        headers = [(b"host", b"127.0.0.1:8800")]
        if self.random.random() < 0.15:
            headers.append((b"holdfast-delay", b"%dms" % int(UNIT * 1000 * pick((1, 10, 100)))))
        sent = Sent(target.encode(), headers, b"x" * pick((2, 2, 200, 20_000)))
        if self.random.random() < 0.2:
            headers.append((b"idempotency-key", b"key %d" % len(self.keyed)))
            self.keyed.append(sent)
        return sent

    async def send(self, replica: Replica, sent: Sent) -> None:
        """One POST, and what its answer promises. After a 503 it may have been stored."""
        witness = self.witness
        request = HttpRequest("POST", sent.target, list(sent.headers), sent.body, INGEST)
        answer = b""
        try:
            with trio.move_on_after(ANSWERED_WITHIN):
                answer = bytes(await replica.ingest(request))
        except Problem as problem:
            witness.note(f"{replica.name} refused {problem.status}")
            witness.check(problem.status in (503, 507), f"refused: {problem}")
            return
        if replica.plight.killed:
            return
        witness.check(answer, f"{replica.name} never answered an app")
        if not answer:
            return
        head = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        id = next(line.partition(": ")[2] for line in head if line.startswith("holdfast-message-id"))
        witness.note(f"{replica.name} acknowledged {short(id)}")
        witness.check(id in witness.messages, f"{id}: acknowledged, and not in the database")
        witness.check(sent.id in (None, id) or witness.evicted, f"{sent.id}: its key now answers {id}")
        self.acknowledged.add(id)
        sent.id = id

    async def _operate(self, nursery: trio.Nursery) -> None:
        if not any(replica.serves for replica in self.replicas):
            return
        pick = self.random.choice
        lane = quote(pick(sorted(self.witness.circuits) or ["a.test:80"]), safe="")
        id = pick(sorted(self.witness.messages) or ["msg_" + "0" * 32])
        call, body = pick(
            (
                (f"POST /v1/circuits/{lane}/freeze", {}),
                (f"POST /v1/circuits/{lane}/unfreeze", {"replay_dead": pick((True, False))}),
                (f"POST /v1/circuits/{lane}/unfreeze", {}),
                (f"POST /v1/circuits/{lane}/probe", {}),
                (f"POST /v1/messages/{id}/retry", {}),
                (f"POST /v1/messages/{id}/retry", {}),
                (f"DELETE /v1/messages/{id}", {}),
                ("POST /v1/dead/replay", {}),
                ("GET /v1/status", {}),
            )
        )
        nursery.start_soon(self.call, self._any(), call, body)

    async def call(self, replica: Replica, call: str, body: dict[str, Any]) -> None:
        method, _, target = call.partition(" ")
        content = json.dumps(body).encode() if body else b""
        self.witness.note(f"operator at {replica.name}: {call} {body}")
        try:
            with trio.move_on_after(ANSWERED_WITHIN) as scope:
                await replica.control(HttpRequest(method, target.encode(), [], content, "control.sock"))
            is_late = scope.cancelled_caught and not replica.plight.killed
            self.witness.check(not is_late, f"{replica.name} never answered an operator: {call}")
        except (Problem, StoreError) as refusal:
            self.witness.note(f"{replica.name} refused an operator: {refusal}")

    # -- what befalls the replicas ------------------------------------------------------------------------------------

    async def start_replica(self) -> None:
        self._made += 1
        replica = Replica(self, f"r{self._made}")
        self.witness.note(f"{replica.name} starts")
        self.replicas.append(replica)
        self.nursery.start_soon(replica.live)
        while not replica.store.number and not replica.over.is_set():
            await trio.sleep(0.1)

    async def _befall(self, nursery: trio.Nursery) -> None:
        if not self.replicas:
            await self.start_replica()
            return
        replica = self.random.choice(self.replicas)
        act = self.random.choice(
            (self._kill, self._stop, self._stop, self._cut_off, self._cut_off, self._outage, self._restart, self._join)
        )
        self.witness.note(f"{act.__name__[1:]} {replica.name}")
        nursery.start_soon(act, replica)

    def _while(self) -> float:
        """Shorter or longer than a lease."""
        return self.random.choice((0.5, 3.0, 1.5 * LEASE / 1000)) * self.random.uniform(0.3, 1.3)

    async def _kill(self, replica: Replica) -> None:
        replica.kill()
        self._gone(replica)
        await trio.sleep(self._while())
        await self.start_replica()

    async def _restart(self, replica: Replica) -> None:
        replica.shut_down()
        self._gone(replica)
        await replica.over.wait()
        await self.start_replica()

    async def _join(self, replica: Replica) -> None:
        if len(self.replicas) < 3:
            await self.start_replica()

    def _gone(self, replica: Replica) -> None:
        if replica in self.replicas:
            self.replicas.remove(replica)

    async def _stop(self, replica: Replica) -> None:
        replica.stop()
        await trio.sleep(self._while())
        replica.go_on()

    async def _cut_off(self, *replicas: Replica) -> None:
        """From now on, or with the next answer: then something was done that nobody heard of."""
        for replica in replicas:
            if self.random.random() < 0.5:
                replica.plight.loses_next = True
                replica.disturb()
            else:
                replica.cut_off()
        await trio.sleep(self._while())
        for replica in replicas:
            replica.mend()

    async def _outage(self, replica: Replica) -> None:
        await self._cut_off(*self.replicas)

    # -- the receivers ----------------------------------------------------------------------------------------------

    async def answer(self, request: Request, deadline: float) -> GivenAnswer:
        answer: Any = None
        with trio.CancelScope(deadline=deadline) as scope:
            answer = self.receivers[request.host](request)
            if isinstance(answer, Awaitable):
                answer = await answer
        if scope.cancelled_caught:
            raise ExchangeTimeout("no answer in time", "192.0.2.1:80")
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, GivenAnswer):
            return answer
        return GivenAnswer(answer, [], b"", "192.0.2.1:80")
