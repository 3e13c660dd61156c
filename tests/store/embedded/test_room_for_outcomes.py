"""Outcomes of all waiting messages can be recorded, however full the store or its volume is."""

from dataclasses import replace
from pathlib import Path

import trio
from pytest import mark

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, AttemptKind, Entry, Fault, Place, Standing
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.port import Accept, Accepted, Deliver, EvictLanes, Fail, Operation, Purge
from tests.contract.builders import EVER, NOW, RULES, Desk, lane_of, retry_at, success
from tests.crash.volumes import small_volume, take_the_rest

MIB = 1 << 20
GROUP = 500
ANSWER = bytes(range(256)) * 4


async def open_desk(nursery: trio.Nursery, folder: Path, max_size: int) -> Desk:
    desk = Desk(nursery, lambda: LmdbEngine(folder, max_size), replace(RULES, host_share=1.0))
    await desk.open()
    return desk


async def fill(desk: Desk, most: int = 50_000, *, lanes: int = 50_000) -> list[Entry]:
    """Accept small messages, to one lane each in turn, until the store refuses."""
    entries: list[Entry] = []
    while len(entries) < most:
        names = [f"h{number % lanes}.example:443" for number in range(len(entries), len(entries) + GROUP)]
        messages = [desk.message(name, bytes(300)) for name in names]
        results = await desk.together(*(Accept(message) for message in messages))
        accepted = [message for message, result in zip(messages, results, strict=True) if type(result) is Accepted]
        entries += [Entry(message, Place(Standing.ACTIVE, message.born)) for message in accepted]
        if len(accepted) < GROUP:
            break
    await desk.restart()
    return [Entry(message, Place(Standing.WAITING, message.born)) for message, _ in entries]


async def in_groups(desk: Desk, operations: list[Operation]) -> None:
    for start in range(0, len(operations), GROUP):
        await desk.together(*operations[start : start + GROUP])


async def fail_all(desk: Desk, entries: list[Entry], number: int) -> list[Entry]:
    """One more failed attempt of each message, as large as an attempt can be."""
    made = Attempt(
        number, AttemptKind.RETRY, NOW, 30_000, "[2001:db8::1]:443", 503, None, "x" * 2_000, Fault.HOST, ANSWER
    )
    due = NOW + number * 1_000_000
    await in_groups(desk, [Fail(entry, made, retry_at(number, due), lane_of(entry)) for entry in entries])
    after = Place(Standing.RETRY, 0, due, number, number)
    return [entry._replace(place=after._replace(born=entry.place.born)) for entry in entries]


async def deliver_all(desk: Desk, entries: list[Entry]) -> None:
    await in_groups(desk, [Deliver(entry, success(99), None) for entry in entries])
    assert (await desk.ledger.statistics()).waiting == 0
    # What the sweep does when room is scarce.
    while await desk.ledger.perform(Purge(EVER, 0, 0, 1_000)):
        pass
    after: bytes | None = None
    while (evicted := await desk.ledger.perform(EvictLanes(after, 1_000, ()))).after:
        after = evicted.after
    await desk.accept("new:443")


async def test_a_store_full_of_what_waits_records_all_outcomes_within_its_size(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    desk = await open_desk(nursery, tmp_path, 8 * MIB)
    entries = await fill(desk)
    for number in range(1, 19):
        entries = await fail_all(desk, entries, number)
        statistics = await desk.ledger.statistics()
        assert statistics.used_bytes < statistics.max_bytes
    assert (await desk.message_view(entries[-1])).attempts[-1].number == 18
    await deliver_all(desk, entries)
    await desk.close()


@mark.parametrize("lanes", [1, 50_000])
async def test_a_store_that_is_far_over_its_size_records_outcomes_and_heals(
    tmp_path: Path, nursery: trio.Nursery, lanes: int
) -> None:
    desk = await open_desk(nursery, tmp_path, 512 * MIB)
    entries = await fill(desk, 4_000, lanes=lanes)
    await desk.close()
    desk = await open_desk(nursery, tmp_path, MIB)
    assert (await desk.ledger.statistics()).used_bytes > MIB
    for number in (1, 2):
        entries = await fail_all(desk, entries, number)
    assert isinstance((await desk.together(Accept(desk.message("new:443"))))[0], StoreFull)
    await deliver_all(desk, entries)
    await desk.close()


@mark.parametrize("left", [0, 1 * MIB, 6 * MIB])
async def test_on_a_full_volume_outcomes_go_on_over_thousands_of_lanes(
    tmp_path: Path, nursery: trio.Nursery, left: int
) -> None:
    with small_volume(tmp_path / "volume", "40m") as volume:
        (volume / "spare").write_bytes(bytes(left))
        desk = await open_desk(nursery, volume / "store", 1 << 30)
        entries = await fill(desk, 8_000)
        take_the_rest(volume / "other")
        (volume / "spare").unlink()
        for number in range(1, 4):
            entries = await fail_all(desk, entries, number)
        await deliver_all(desk, entries)
        await desk.close()
