"""The wall clock jumps two days, either way, while holdfast runs and between two runs.

In virtual time with the real clock on clocks that are set by hand, for what takes minutes or days; and real processes
whose wall clock is moved under them.
"""

import os
import re
from collections import Counter
from datetime import datetime
from pathlib import Path

import httpx
import pytest
import trio
from standardwebhooks import Webhook

from holdfast.clock import BootClock, offset
from holdfast.core.circuit import CircuitState
from holdfast.core.message import MessageState
from holdfast.process.lifecycle import keep_time
from holdfast.store.embedded.ledger import last_time
from tests.crash.wall_clock import WallClock
from tests.sim.world import DAY, HOUR, MINUTE, START, World, asks_for, date_at, slow, world
from tests.sim.world import until as until_moment
from tests.support import fork_server
from tests.support.harness import PLAIN, Gateway, Receiver, running, until

JUMP = 2 * DAY
JUMPS = [JUMP, -JUMP]
LONG = 3 * HOUR + 30
LATE = 60
"""Seconds that a due attempt may come late by."""

FINE, DOWN = "fine.test:80", "down.test:80"
FAILING = [f"failing{number}.test:80" for number in range(3)]
TRIPS_AT = 20
"""Failures in a row: more than one message comes to in its whole schedule."""


class Machine:
    """The clocks of a machine: boot time passes as virtual time does, the wall clock is moved by hand."""

    def __init__(self, it: World) -> None:
        self.it = it
        self.moved = 0
        it.clock = self.clock()  # type: ignore[assignment]

    def clock(self) -> BootClock:
        return BootClock(last_time(self.it.engine), self._wall, self._boot)

    def restart(self) -> None:
        """What a start does: the clock is read anew."""
        self.it.clock = self.clock()  # type: ignore[assignment]

    def _boot(self) -> int:
        return round((trio.current_time() - self.it.began) * 1000)

    def _wall(self) -> int:
        return START + self._boot() + self.moved * 1000


def busy_world() -> World:
    """One host is slow and fine, some fail for good, one has its circuit disabled."""
    it = world(circuit={"min_attempts": 0, "disable_after": TRIPS_AT})
    it.scripts = {FINE: slow(0.1), DOWN: 500} | dict.fromkeys(FAILING, slow(0.1, 500))
    return it


async def fill(it: World) -> list[str]:
    """Messages of all kinds: waiting, between retries, held by their circuit, delivered."""
    ids = await it.accept_for([*FAILING, *[DOWN] * TRIPS_AT, FINE])
    await it.sleep_to(100)
    assert await it.circuit_state(DOWN) is CircuitState.DISABLED
    return [*ids, *await it.accept_many(20, FINE), *await it.accept_many(2, DOWN)]


class Restart:
    """What happens after a restart at 1,000 s: with the wall clock moved, or after a time without a gateway."""

    def __init__(self, *, moved: int = 0, down_for: int = 0, crash: bool = False) -> None:
        self.moved = moved
        self.down_for = down_for
        self.crash = crash

    async def run(self) -> None:
        it = self.it = busy_world()
        machine = Machine(it)
        async with trio.open_nursery() as nursery:
            async with it.gateway(crash=self.crash):
                nursery.start_soon(keep_time, it.ledger)
                self.ids = await fill(it)
                await it.sleep_to(1_000)
            nursery.cancel_scope.cancel()
        await it.sleep_to(1_000 + self.down_for)
        machine.moved = self.moved
        self.before = len(it.requests)
        machine.restart()
        async with it.gateway():
            self.ids += await it.accept_many(20, FINE)
            self.began = it.now
            await it.sleep_to(self.began + 9 * MINUTE + 59)
            self.states = await it.states(self.ids)
            await it.sleep_to(self.began + LONG)

    def first_requests(self) -> dict[str, float]:
        """By message, in seconds from the restart."""
        first: dict[str, float] = {}
        for request in self.it.requests[self.before :]:
            first.setdefault(request.id, round(request.at - self.began, 3))
        return first

    def per_host(self, seconds: float) -> Counter[str]:
        return Counter(
            request.host for request in self.it.requests[self.before :] if request.at - self.began <= seconds
        )

    def most_at_once(self, seconds: float) -> dict[str, int]:
        soon = [it for it in self.it.requests[self.before :] if it.at - self.began <= seconds]
        return {host: max(it.beside for it in soon if it.host == host) for host in {it.host for it in soon}}


@pytest.mark.parametrize("crash", [False, True])
async def test_a_clock_behind_at_a_start_only_delays_attempts(autojump_clock: object, crash: bool) -> None:
    plain, behind = Restart(crash=crash), Restart(moved=-JUMP, crash=crash)
    await plain.run()
    await behind.run()
    usual, late = plain.first_requests(), behind.first_requests()
    assert list(late.values()) == sorted(late.values())
    assert len(late) == len(usual) > 20
    assert all(0 <= late[id] - usual[other] <= LATE for id, other in zip(late, usual, strict=True))
    for seconds in (1, 10, 100, 590):
        assert behind.per_host(seconds) <= plain.per_host(seconds)
    first = behind.it.requests[behind.before :]
    assert all(next(it for it in first if it.host == host).beside == 1 for host in behind.per_host(LONG))
    assert behind.most_at_once(0) == dict.fromkeys(behind.per_host(0), 1), "every host begins in slow start"
    assert behind.states == plain.states


async def test_a_clock_ahead_at_a_start_counts_as_elapsed_time(autojump_clock: object) -> None:
    """No receiver gets more, or more at once, than after a plain restart of a gateway that was away for as long."""
    plain, ahead = Restart(down_for=JUMP), Restart(moved=JUMP)
    await plain.run()
    await ahead.run()
    assert list(ahead.first_requests().values()) == list(plain.first_requests().values())
    for seconds in (1, 10, 100, 590, LONG):
        assert ahead.per_host(seconds) == plain.per_host(seconds)
        assert ahead.most_at_once(seconds) == plain.most_at_once(seconds)
    assert ahead.most_at_once(0) == dict.fromkeys([FINE, DOWN, *FAILING], 1)
    assert ahead.states == plain.states


@pytest.mark.parametrize("moved", JUMPS)
async def test_nothing_expires_or_is_purged_in_the_first_ten_minutes(autojump_clock: object, moved: int) -> None:
    run = Restart(moved=moved)
    await run.run()
    assert MessageState.DEAD not in run.states
    assert run.states.total() == len(run.ids), "delivered records are still there"


async def test_with_a_clock_ahead_a_disabled_circuit_is_probed_before_anything_in_it_expires(
    autojump_clock: object,
) -> None:
    run = Restart(moved=JUMP + HOUR)
    await run.run()
    assert DOWN in {request.host for request in run.it.requests[run.before :]}
    assert await run.it.circuit_state(DOWN) is CircuitState.DISABLED


@pytest.mark.parametrize("moved", JUMPS)
async def test_ids_grow_whatever_the_wall_clock_does(autojump_clock: object, moved: int) -> None:
    it = world()
    machine, ids = Machine(it), []
    for shift in (0, moved, 0, -moved, 0):
        machine.moved = shift
        machine.restart()
        async with it.gateway(crash=True):
            ids += [await it.accept() for _ in range(3)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("moved", JUMPS)
async def test_a_jump_during_a_run_is_not_followed(autojump_clock: object, moved: int) -> None:
    async def requests(jump: int) -> list[float]:
        it = busy_world()
        machine = Machine(it)
        async with it.gateway():
            await fill(it)
            await it.sleep_to(500)
            machine.moved = jump
            assert offset(it.clock) == -jump * 1000
            await it.sleep_to(LONG)
        return it.times()

    assert await requests(moved) == await requests(0)


@pytest.mark.parametrize("moved", JUMPS)
async def test_a_receiver_s_date_means_the_same_after_a_jump(autojump_clock: object, moved: int) -> None:
    """Its clock is right, and so is the wall clock again: the jump set it right."""
    it = world()
    machine = Machine(it)
    it.scripts[FINE] = until_moment(1, asks_for(503, date_at(300 + moved)))
    async with it.gateway():
        machine.moved = moved
        await it.accept(FINE)
        await it.sleep_to(LONG)
    assert it.times() == [0, 300]


# -- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    return clock


def metric(gateway: Gateway) -> float:
    found = re.search(r"^holdfast_clock_offset_seconds (\S+)$", gateway.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def is_told(gateway: Gateway, seconds: int) -> bool:
    """That it is off, by about so much, on the way for programs and on the one for Prometheus."""
    clock = gateway.get("/status").json()["clock"]
    return bool(clock["off"]) and all(abs(each - seconds) < 100 for each in (clock["offset"], metric(gateway)))


def command(gateway: Gateway, *words: str) -> str:
    done = fork_server.run(*words, "--socket", str(gateway.control), env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("moved", JUMPS)
def test_a_running_process_does_not_follow_a_jump(
    tmp_path: Path, wall_clock: WallClock, receiver: Receiver, moved: int
) -> None:
    receiver.answer = lambda request: 500 if request.path == "/fails" and len(receiver.requests) < 3 else 200
    with running(tmp_path / "store", retry__base="500ms") as gateway:
        before = moment(gateway.message(gateway.post(f"{receiver.url}/before").json()["id"])["accepted_at"])
        failing = gateway.post(f"{receiver.url}/fails").json()["id"]
        wall_clock.set(moved)
        until(lambda: is_told(gateway, -moved))
        way = "behind" if moved > 0 else "ahead of"
        assert f" {way} the wall clock, which signatures use" in command(gateway, "status")
        until(lambda: gateway.message(failing)["state"] == "delivered")
        after = moment(gateway.message(gateway.post(f"{receiver.url}/after").json()["id"])["accepted_at"])
        assert 0 <= after - before < HOUR
        # "An hour ago" and "by now" are by its own time, as what it keeps is.
        assert gateway.post(f"{receiver.url}/later", holdfast_delay="1h").status_code == 202
        drop = ("messages", "drop", "--state", "queued")
        assert command(gateway, *drop, "--before", "1h") == "0 messages dropped\n"
        assert command(gateway, *drop) == "1 message dropped\n"
        assert gateway.stop() == 0


def test_restarts_with_a_jumping_wall_clock(tmp_path: Path, wall_clock: WallClock, receiver: Receiver) -> None:
    """Ahead, and back again: ids and time only grow, and what is due is tried once, carefully."""
    receiver.answer = lambda request: 500
    ids: list[str] = []

    def post(gateway: Gateway) -> None:
        ids.extend(gateway.post(f"{receiver.url}/hook").json()["id"] for _ in range(3))
        until(lambda: all(gateway.message(id)["state"] == "retrying" for id in ids))

    with running(tmp_path / "store", retry__base="12h") as gateway:
        post(gateway)
        gateway.kill()
    wall_clock.set(JUMP)
    with running(tmp_path / "store", retry__base="12h") as gateway:
        until(lambda: all(len(gateway.message(id)["attempts"]) == 2 for id in ids))
        assert gateway.get(f"/circuits/127.0.0.1:{receiver.port}").json()["limit"] == 1
        post(gateway)
        assert gateway.stop() == 0
    wall_clock.set(0)
    with running(tmp_path / "store", retry__base="12h") as gateway:
        post(gateway)
        times = [moment(gateway.message(id)["accepted_at"]) for id in ids]
    assert times == sorted(times)
    assert ids == sorted(set(ids))
    assert Counter(request.id for request in receiver.requests) == Counter(ids[:3] + ids)


def test_a_wall_clock_that_was_ahead_for_one_run_leaves_signatures_that_verify(
    tmp_path: Path, wall_clock: WallClock, receiver: Receiver, processes: object
) -> None:
    """The store remembers the days ahead, and a receiver's verifier knows only its own wall clock."""
    secret, config = "whsec_" + "c2VjcmV0" * 4, tmp_path / "holdfast.toml"
    (tmp_path / "secret").write_text(secret)
    config.write_text(f'[routes.billing]\nurl = "{receiver.url}/in"\nsign = {{ secret_file = "{tmp_path}/secret" }}\n')
    ahead = 3 * DAY
    wall_clock.set(ahead)
    with running(tmp_path / "store", config=config) as gateway:
        assert httpx.post(f"http://{gateway.ingest}/to/billing", content=b"1", **PLAIN).status_code == 202
        receiver.wait_for_one()
        assert gateway.stop() == 0
    wall_clock.set(0)
    with running(tmp_path / "store", config=config) as gateway:
        assert httpx.post(f"http://{gateway.ingest}/to/billing", content=b"2", **PLAIN).status_code == 202
        request = receiver.wait_for(lambda requests: len(requests) == 2)[1]
        Webhook(secret).verify(request.body, dict(request.headers))
        assert is_told(gateway, ahead)
        (told,) = [event for event in gateway.events() if event["event"] == "clock_off"]
        assert (told["level"], abs(told["offset"] - ahead) < 100) == ("warning", True)
