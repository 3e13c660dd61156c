"""A group is larger after a slow fsync, and smaller when little room is left."""

import time
from pathlib import Path

import trio

from holdfast.core.message import Message
from holdfast.store.batching import GROUP_LIMIT, LARGEST_GROUP_LANES, group_size
from holdfast.store.embedded.lmdb import LmdbEngine, Write
from holdfast.store.embedded.writer_thread import LARGEST_GROUP, GroupLimit
from holdfast.store.port import Accept
from tests.contract.builders import NOW, RULES, Desk

MIB = 1 << 20


def accept(lane: str, body: bytes = b"{}") -> Accept:
    return Accept(Message(bytes(16), lane, lane, "https", lane, b"/", "POST", (), body, NOW, NOW))


def test_a_fast_disk_leaves_the_group_as_it_was() -> None:
    group_limit = GroupLimit()
    assert group_limit.operations == GROUP_LIMIT
    group_limit.took(GROUP_LIMIT, 0.005, 0.002)
    assert group_limit.operations == GROUP_LIMIT


def test_after_a_slow_fsync_puts_may_take_a_quarter_of_its_time() -> None:
    group_limit = GroupLimit()
    group_limit.took(500, 0.005, 0.040)
    assert group_limit.operations == 1_000
    group_limit.took(1_000, 0.010, 4.0)
    assert group_limit.operations == LARGEST_GROUP
    group_limit.took(1_000, 0.010, 0.001)
    assert group_limit.operations == GROUP_LIMIT


def test_what_does_not_fit_comes_in_halves_and_grows_again() -> None:
    group_limit = GroupLimit()
    group_limit.did_not_fit(512)
    assert group_limit.operations == 256
    group_limit.did_not_fit(1)
    assert group_limit.operations == 1
    for _ in range(100):
        group_limit.fitted()
    assert group_limit.operations == GROUP_LIMIT


def test_a_large_group_has_a_bound_on_its_lanes_and_bodies() -> None:
    assert group_size([accept(f"h{number}:443") for number in range(5_000)], LARGEST_GROUP) == LARGEST_GROUP_LANES
    assert group_size([accept("h:443") for _ in range(5_000)], LARGEST_GROUP) == LARGEST_GROUP
    assert group_size([accept(f"h{number}:443") for number in range(5_000)]) == GROUP_LIMIT
    assert group_size([accept("h:443", bytes(MIB)) for _ in range(10)], LARGEST_GROUP) == 4


class SlowWrite(Write):
    def commit(self) -> None:
        time.sleep(0.8)
        super().commit()


class SlowDisk(LmdbEngine):
    def write(self) -> SlowWrite:
        return SlowWrite(self._environment, self._tables)


async def test_a_slow_disk_gets_larger_groups(tmp_path: Path, nursery: trio.Nursery) -> None:
    desk = Desk(nursery, lambda: SlowDisk(tmp_path, 256 * MIB), RULES)
    await desk.open()
    await desk.together(*(Accept(desk.message()) for _ in range(GROUP_LIMIT)))
    before = len(desk.recorder.commits)
    await desk.together(*(Accept(desk.message()) for _ in range(2 * GROUP_LIMIT)))
    assert max(commit.operations for commit in desk.recorder.commits[before:]) > GROUP_LIMIT
    await desk.close()
