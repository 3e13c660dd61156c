"""Deadlines in virtual time."""

import random

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.http.deadlines import MAX_STALE, Deadline, Deadlines


class Recorded:
    """Deadlines by number, and the time at which each passed."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.passed: list[tuple[float, int]] = []

    def new(self, number: int) -> Deadline:
        return Deadline(self.deadlines, lambda: self.passed.append((trio.current_time(), number)))


async def test_each_deadline_passes_at_its_time(autojump_clock: MockClock) -> None:
    recorded = Recorded()
    begin = trio.current_time()
    for number in (5, 1, 3):
        recorded.new(number).set(begin + number)
    await trio.sleep(2)
    recorded.new(2).set(begin + 2.5)
    await trio.sleep(10)
    assert recorded.passed == [(begin + 1, 1), (begin + 2.5, 2), (begin + 3, 3), (begin + 5, 5)]


async def test_a_deadline_can_be_set_again(autojump_clock: MockClock) -> None:
    recorded = Recorded()
    begin = trio.current_time()
    deadline = recorded.new(7)
    deadline.set(begin + 1)
    deadline.set(begin + 4)
    await trio.sleep(2)
    assert recorded.passed == []
    deadline.set(begin + 3)
    await trio.sleep(10)
    assert recorded.passed == [(begin + 3, 7)]
    deadline.set(begin + 20)
    await trio.sleep(10)
    assert recorded.passed == [(begin + 3, 7), (begin + 20, 7)]


async def test_a_deadline_that_is_set_to_the_same_time_passes_once(autojump_clock: MockClock) -> None:
    recorded = Recorded()
    deadline, moment = recorded.new(1), trio.current_time() + 1
    for _ in range(3):
        deadline.set(moment)
    await trio.sleep(5)
    assert recorded.passed == [(moment, 1)]


async def test_a_cleared_deadline_never_passes(autojump_clock: MockClock) -> None:
    recorded = Recorded()
    deadline = recorded.new(1)
    deadline.set(trio.current_time() + 1)
    deadline.clear()
    deadline.clear()
    await trio.sleep(5)
    assert recorded.passed == []


async def test_the_timer_ends_without_entries_and_starts_again(autojump_clock: MockClock) -> None:
    def tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    recorded, before = Recorded(), tasks()
    for number in range(3):
        recorded.new(number).set(trio.current_time() + 1)
        assert tasks() == before + 1
        await trio.sleep(2)
        await wait_all_tasks_blocked()
        assert tasks() == before
    assert [number for _, number in recorded.passed] == [0, 1, 2]


async def test_moved_deadlines_leave_few_stale_entries(autojump_clock: MockClock) -> None:
    recorded = Recorded()
    deadlines = [recorded.new(number) for number in range(100)]
    for _ in range(1_000):
        for deadline in deadlines:
            deadline.set(trio.current_time() + 30)
    assert len(recorded.deadlines) <= 2 * len(deadlines) + 2 * MAX_STALE


async def test_dropped_deadlines_leave_few_stale_entries(autojump_clock: MockClock) -> None:
    recorded = Recorded()
    for number in range(10_000):
        deadline = recorded.new(number)
        deadline.set(trio.current_time() + 30)
        deadline.drop()
    assert len(recorded.deadlines) <= 2 * MAX_STALE
    await trio.sleep(60)
    assert recorded.passed == []


async def test_random_deadlines_pass_like_those_of_a_plain_table(autojump_clock: MockClock) -> None:
    for seed in range(20):
        chance, recorded, plain = random.Random(seed), Recorded(), dict[int, float]()
        deadlines = [recorded.new(number) for number in range(40)]
        expected: list[tuple[float, int]] = []
        for _ in range(400):
            number = chance.randrange(40)
            if chance.random() < 0.4:
                deadlines[number].clear()
                plain.pop(number, None)
            else:
                plain[number] = trio.current_time() + chance.randrange(1, 50) + number / 100
                deadlines[number].set(plain[number])
            await trio.sleep(chance.random())
            over = {number: moment for number, moment in plain.items() if moment <= trio.current_time()}
            expected += [(moment, number) for number, moment in over.items()]
            plain = {number: moment for number, moment in plain.items() if number not in over}
        await trio.sleep(100)
        expected += [(moment, number) for number, moment in plain.items()]
        assert recorded.passed == sorted(expected), seed
