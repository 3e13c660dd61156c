"""Names that resolve beside names that hang: who gets a thread, what is cached, and bounds on all of it."""

import errno
import gc
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.core.errors import NameNotResolved
from holdfast.delivery import resolver
from holdfast.delivery.resolver import (
    FAILURE_KEPT_FOR,
    FOR_A_THREAD,
    HANGS_AFTER,
    LAST_GOOD_FOR,
    RECENT_THREADS,
    SHARE,
    THREADS,
    TIMEOUT,
    Resolver,
)
from holdfast.http.dial import Address
from tests.delivery.fake_resolver import PUBLIC, FakeResolver
from tests.support.harness import until

NAME = "hooks.example.com"
FOUND = [(socket.AF_INET, (PUBLIC, 443))]
MANY = 400
SILENT = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def names() -> Iterator[FakeResolver]:
    names = FakeResolver()
    yield names
    names.let_go.set()


@pytest.fixture
async def it(names: FakeResolver) -> Resolver:
    return Resolver(names)


def hosts(count: int, what: str = "hanging") -> list[str]:
    """Hosts of different domains."""
    return [f"hooks.{what}-{number}.com" for number in range(count)]


async def look_up(it: Resolver, host: str = NAME) -> list[Address]:
    return await it.look_up(host, 443)


async def fail(it: Resolver, host: str = NAME) -> NameNotResolved:
    with pytest.raises(NameNotResolved) as failed:
        await look_up(it, host)
    return failed.value


async def look_up_all(it: Resolver, all_hosts: Iterable[str]) -> None:
    async def one(host: str) -> None:
        assert await look_up(it, host) == FOUND

    async with trio.open_nursery() as nursery:
        for host in all_hosts:
            nursery.start_soon(one, host)


async def hang(it: Resolver, names: FakeResolver, nursery: trio.Nursery, hanging: list[str], in_threads: int) -> None:
    """Start look-ups that hang, and wait until `in_threads` of them are in threads."""
    names.hanging.update(hanging)
    for host in hanging:
        nursery.start_soon(fail, it, host)
    await names.until_asked(in_threads)
    await wait_all_tasks_blocked()


async def pass_time(clock: MockClock, seconds: float) -> None:
    clock.jump(seconds)
    await wait_all_tasks_blocked()


# -- names that resolved recently --------------------------------------------------------------------------------------


async def test_names_that_resolved_recently_are_not_delayed_by_hundreds_that_hang(
    it: Resolver, names: FakeResolver
) -> None:
    recent = hosts(2 * RECENT_THREADS, "recent")
    await look_up_all(it, recent)
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, hosts(MANY), len(recent) + THREADS)
        asked = len(names.asked)
        await look_up_all(it, recent)
        assert sorted(names.asked[asked:]) == sorted(recent), "the resolver was asked, not the cache"
        nursery.cancel_scope.cancel()


async def test_a_last_good_answer_is_used_while_all_recent_names_hang(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    recent = hosts(2 * RECENT_THREADS)
    await look_up_all(it, [*recent, NAME])
    names.hanging.update(recent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_up_all, it, recent)
        await names.until_asked(len(recent) + 1 + RECENT_THREADS)
        nursery.start_soon(look_up_all, it, [NAME])
        await wait_all_tasks_blocked()
        mock_clock.jump(HANGS_AFTER)
    assert names.asked.count(NAME) == 1, "there is no thread for it, but its last answer is there at once"
    await pass_time(mock_clock, TIMEOUT)
    await names.let_all_go()
    assert await look_up(it) == FOUND
    assert names.asked.count(NAME) == 2


async def test_a_last_good_answer_is_used_while_the_name_hangs(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    await look_up(it)
    names.hanging.add(NAME)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_up_all, it, [NAME])
        await names.until_asked(2)
        await wait_all_tasks_blocked()
        mock_clock.jump(HANGS_AFTER)
    await pass_time(mock_clock, TIMEOUT)
    for _ in range(3):
        assert await look_up(it) == FOUND, "and at once when it is known to hang"
        await pass_time(mock_clock, FAILURE_KEPT_FOR)
    assert names.asked == [NAME] * 2


@pytest.mark.parametrize("error", [SILENT, OSError(errno.EMFILE, "Too many open files")], ids=repr)
async def test_a_last_good_answer_is_used_for_a_limited_time_when_this_side_fails(
    it: Resolver, names: FakeResolver, mock_clock: MockClock, error: Exception
) -> None:
    names.answers[NAME] = [[PUBLIC], error]
    await look_up(it)
    mock_clock.jump(LAST_GOOD_FOR - FAILURE_KEPT_FOR)
    assert await look_up(it) == FOUND
    mock_clock.jump(FAILURE_KEPT_FOR)
    assert (await fail(it)).here
    assert names.asked == [NAME] * 3


async def test_a_last_good_answer_is_not_used_when_the_names_servers_say_otherwise(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    names.answers[NAME] = [[PUBLIC], UNKNOWN, SILENT]
    await look_up(it)
    assert not (await fail(it)).here
    mock_clock.jump(FAILURE_KEPT_FOR)
    assert (await fail(it)).here, "and is forgotten by then"


async def test_an_answer_that_changes_is_the_last_good_one(it: Resolver, names: FakeResolver) -> None:
    names.answers[NAME] = [["198.51.100.1"], [PUBLIC], SILENT]
    assert await look_up(it) != FOUND
    assert await look_up(it) == FOUND
    assert await look_up(it) == FOUND
    assert names.asked == [NAME] * 3


# -- new names ---------------------------------------------------------------------------------------------------------


async def test_a_million_hanging_names_of_one_domain_leave_threads_for_other_domains(
    it: Resolver, names: FakeResolver
) -> None:
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, [f"{number}.hanging.com" for number in range(2 * THREADS)], SHARE)
        assert names.inside == SHARE
        assert await look_up(it) == FOUND
        nursery.cancel_scope.cancel()


async def test_names_that_hung_before_leave_threads_for_new_ones(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    hanging = hosts(THREADS)
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, hanging, THREADS)
        mock_clock.jump(TIMEOUT)
    for host in hanging:
        names.answers[host] = [SILENT]
    await names.let_all_go()
    mock_clock.jump(FAILURE_KEPT_FOR)
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, hanging, SHARE)
        assert names.inside == SHARE
        assert await look_up(it) == FOUND
        nursery.cancel_scope.cancel()


async def test_a_name_that_hung_and_answers_again_has_no_restriction(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, [NAME], 1)
        mock_clock.jump(TIMEOUT)
    await names.let_all_go()
    names.hanging.clear()
    assert await look_up(it) == FOUND, "the thread that hung has brought an answer in the end"
    assert names.asked == [NAME] * 2


async def test_a_look_up_without_a_thread_fails_before_its_attempt_times_out(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, hosts(THREADS), THREADS)
        failures: list[NameNotResolved] = []

        async def wait() -> None:
            failures.append(await fail(it))

        async with trio.open_nursery() as waiting:
            waiting.start_soon(wait)
            await wait_all_tasks_blocked()
            mock_clock.jump(FOR_A_THREAD)
        assert failures[0].here
        assert str(failures[0]) == f"{NAME}: not looked up, since too many look-ups hang ({THREADS})"
        mock_clock.jump(TIMEOUT)
    await names.let_all_go()
    assert await look_up(it) == FOUND, "it is not remembered as a name that failed"


# -- names that failed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "here"), [(SILENT, True), (UNKNOWN, False)], ids=repr)
async def test_a_name_that_failed_is_not_looked_up_again_for_some_seconds(
    it: Resolver, names: FakeResolver, mock_clock: MockClock, error: Exception, here: bool
) -> None:
    names.answers[NAME] = [error, [PUBLIC]]
    for _ in range(3):
        assert (await fail(it)).here is here
    assert names.asked == [NAME]
    mock_clock.jump(FAILURE_KEPT_FOR)
    assert await look_up(it) == FOUND


async def test_a_failure_of_this_machine_says_nothing_about_the_name(it: Resolver, names: FakeResolver) -> None:
    names.answers[NAME] = [OSError(errno.EMFILE, "Too many open files"), [PUBLIC]]
    assert (await fail(it)).here
    assert await look_up(it) == FOUND


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_the_cache_of_failures_is_bounded(
    it: Resolver, names: FakeResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "NAMES_KEPT", 10)
    failing = hosts(11, "failing")
    names.answers |= {host: [UNKNOWN] for host in failing}
    for host in failing:
        await fail(it, host)
    names.asked.clear()
    await fail(it, failing[1])
    assert names.asked == []
    await fail(it, failing[0])
    assert names.asked == [failing[0]]


async def test_the_cache_of_answers_is_bounded_and_failures_do_not_evict_answers(
    it: Resolver, names: FakeResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "NAMES_KEPT", 10)
    healthy, failing = hosts(11, "healthy"), hosts(30, "failing")
    for host in healthy:
        await look_up(it, host)
    names.answers |= {host: [SILENT] for host in [*healthy, *failing]}
    for host in failing:
        await fail(it, host)
    for host in healthy[1:]:
        assert await look_up(it, host) == FOUND
    assert (await fail(it, healthy[0])).here


def limiters() -> int:
    gc.collect()
    return sum(isinstance(each, trio.CapacityLimiter) for each in gc.get_objects())


async def test_names_that_hung_leave_nothing_in_memory(
    it: Resolver, names: FakeResolver, mock_clock: MockClock
) -> None:
    trio.to_thread.current_default_thread_limiter()
    before = limiters()
    async with trio.open_nursery() as nursery:
        await hang(it, names, nursery, hosts(MANY), THREADS)
        assert limiters() >= before + THREADS
        mock_clock.jump(TIMEOUT)
    assert names.inside == THREADS, "a thread that hangs can't be ended"
    await names.let_all_go()
    assert names.inside == 0
    assert limiters() == before
    asked = len(names.asked)
    names.hanging.clear()
    await look_up_all(it, hosts(MANY))
    assert len(names.asked) == asked + MANY


async def test_a_thread_is_reused_and_ends_when_idle(it: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(threading.enumerate())

    def threads() -> int:
        return sum(thread.name == "look-up" for thread in set(threading.enumerate()) - others)

    for _ in range(20):
        await look_up(it)
    assert threads() == 1
    monkeypatch.setattr(resolver, "IDLE_FOR", 0.001)
    for _ in range(200):
        await look_up_all(it, hosts(3))
    await trio.to_thread.run_sync(until, lambda: not threads())
    assert await look_up(it) == FOUND
