"""A probe takes the oldest message that was not probed in this state, then starts again from the oldest."""

import pytest

from holdfast.core.message import Entry, Standing
from holdfast.core.start_order import position
from holdfast.store.embedded import reads
from tests.contract.builders import HOUR, MINUTE, NOW, Desk, disabled, frozen, lane, retry_at
from tests.contract.conftest import embedded


async def rotation(desk: Desk, turns: int, **ask: int) -> list[Entry | None]:
    """The probes while a circuit is disabled, each remembered by the circuit as the start order does it."""
    probed, taken = None, []
    for _ in range(turns):
        entry = await desk.next_probe(probed, **ask)
        taken.append(entry)
        probed = position(entry) if entry else probed
    return taken


def numbered(desk: Desk, entries: list[Entry | None]) -> list[int | None]:
    of = {message.id: number for number, message in enumerate(desk.messages)}
    return [entry and of[entry.message.id] for entry in entries]


async def numbers(desk: Desk, turns: int, **ask: int) -> list[int | None]:
    return numbered(desk, await rotation(desk, turns, **ask))


async def test_probes_rotate_over_what_waits_and_what_is_retried_by_age(desk: Desk) -> None:
    await desk.retrying(NOW + 3 * HOUR)
    await desk.accept_waiting()
    await desk.retrying(NOW + 2 * HOUR)
    await desk.save(disabled())
    probes = await rotation(desk, 5)
    assert numbered(desk, probes) == [0, 1, 2, 0, 1]
    assert [entry.place.standing for entry in probes[:3]] == [Standing.RETRY, Standing.WAITING, Standing.RETRY]


async def test_the_rotation_goes_on_after_a_restart(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=3)
    await desk.save(disabled(probed=position(waiting[0])))
    await desk.restart()
    assert await desk.next_probe() == waiting[1]


async def test_a_probed_message_that_left_does_not_stop_the_rotation(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=3)
    await desk.deliver(waiting[1])
    await desk.save(disabled(probed=position(waiting[1])))
    assert await desk.next_probe() == waiting[2]


async def test_a_delayed_message_is_no_probe_before_its_time(desk: Desk) -> None:
    await desk.accept(delay=HOUR)
    await desk.save(disabled())
    assert await desk.next_probe(at=NOW + HOUR - 1) is None
    assert await desk.next_probe(at=NOW + HOUR) is not None
    assert (await desk.look()).heads.probe_from == NOW + HOUR


async def test_a_message_held_by_retry_after_is_no_probe_before_its_time(desk: Desk) -> None:
    await desk.retrying(NOW + HOUR, held=True)
    await desk.retrying(NOW + 2 * HOUR)
    await desk.save(disabled())
    assert await numbers(desk, 3, at=NOW + HOUR - 1) == [1, 1, 1]
    assert await numbers(desk, 3, at=NOW + HOUR) == [0, 1, 0]


@embedded("its writer waits while a lane is searched")
async def test_a_lane_full_of_held_messages_is_not_searched_to_its_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "HELD_SEEN", 3)
    for hours in (5, 4, 3, 2, 6):
        await desk.retrying(NOW + hours * HOUR, held=True)
    await desk.retrying(NOW + 8 * HOUR)
    await desk.save(disabled())
    assert (await desk.look()).probe is None, "that it could be had was not looked for"
    assert (await desk.look()).heads.probe_from == NOW + 2 * HOUR
    probe = (await desk.look(at=NOW + 2 * HOUR)).probe
    assert probe is not None
    assert probe.message == desk.messages[3], "the first that is due"


async def test_a_message_under_way_is_no_probe(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    await desk.save(disabled())
    assert await desk.next_probe(skip=[waiting[0].message.id]) == waiting[1]
    assert await desk.next_probe(skip=[entry.message.id for entry in waiting]) is None


async def test_only_a_disabled_lane_is_probed(desk: Desk) -> None:
    await desk.accept_waiting()
    for on in (lane(), frozen()):
        await desk.save(on)
        assert await desk.next_probe() is None


async def test_a_failed_probe_keeps_its_place_in_the_queue(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    on = disabled()
    await desk.fail(waiting[0], None, on=on)
    first, second = await desk.all_waiting()
    assert (first.place.attempts, second.place.attempts) == (1, 0)
    assert await desk.next_probe() == first


async def test_a_lane_with_nothing_waiting_has_no_probe(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    await desk.deliver(entry)
    await desk.save(disabled())
    assert await desk.next_probe() is None
    assert (await desk.look()).heads.probe_from is None


async def test_the_place_of_a_probe_that_is_retried_is_whole(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.fail(entry, retry_at(4, NOW + MINUTE), number=6)
    await desk.save(disabled())
    probe = await desk.next_probe()
    assert probe is not None
    assert (probe.place.retry, probe.place.attempts, probe.place.due) == (4, 6, NOW + MINUTE)
