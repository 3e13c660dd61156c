"""A probe takes the oldest message that was not probed in this spell, then starts again from the oldest."""

import pytest

from contract.builders import HOUR, MINUTE, NOW, Desk, disabled, frozen, lane, retry_at
from holdfast.core.board import position
from holdfast.core.message import Entry, Standing
from holdfast.store import reads


async def rotation(desk: Desk, turns: int, **ask: int) -> list[Entry | None]:
    """The probes of one spell, each remembered by the circuit as the board does it."""
    probed, taken = None, []
    for _ in range(turns):
        entry = (await desk.look(probed=probed, **ask)).probe
        taken.append(entry)
        probed = position(entry) if entry else probed
    return taken


async def numbers(desk: Desk, turns: int, **ask: int) -> list[int | None]:
    of = {message.id: number for number, message in enumerate(desk.messages)}
    return [entry and of[entry.message.id] for entry in await rotation(desk, turns, **ask)]


async def test_probes_rotate_over_what_waits_and_what_is_retried_by_age(desk: Desk) -> None:
    await desk.retrying(NOW + 3 * HOUR)
    await desk.accept_waiting()
    await desk.retrying(NOW + 2 * HOUR)
    await desk.save(disabled())
    assert await numbers(desk, 5) == [0, 1, 2, 0, 1]
    assert [entry.place.standing for entry in await rotation(desk, 3)] == [
        Standing.RETRY,
        Standing.WAITING,
        Standing.RETRY,
    ]


async def test_the_rotation_goes_on_after_a_restart(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=3)
    await desk.save(disabled(probed=position(waiting[0])))
    await desk.restart()
    assert (await desk.look()).probe == waiting[1]


async def test_a_probed_message_that_left_does_not_stop_the_rotation(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=3)
    await desk.save(disabled())
    await desk.deliver(waiting[1])
    assert (await desk.look(probed=position(waiting[1]))).probe == waiting[2]


async def test_a_delayed_message_is_no_probe_before_its_time(desk: Desk) -> None:
    await desk.accept(delay=HOUR)
    await desk.save(disabled())
    assert (await desk.look(at=NOW + HOUR - 1)).probe is None
    assert (await desk.look(at=NOW + HOUR)).probe is not None
    assert (await desk.look()).heads.probe_from == NOW + HOUR


async def test_a_message_held_by_retry_after_is_no_probe_before_its_time(desk: Desk) -> None:
    await desk.retrying(NOW + HOUR, held=True)
    await desk.retrying(NOW + 2 * HOUR)
    await desk.save(disabled())
    assert await numbers(desk, 3, at=NOW + HOUR - 1) == [1, 1, 1]
    assert await numbers(desk, 3, at=NOW + HOUR) == [0, 1, 0]


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
    assert (await desk.look(skip=[waiting[0].message.id])).probe == waiting[1]
    assert (await desk.look(skip=[entry.message.id for entry in waiting])).probe is None


async def test_only_a_disabled_lane_is_probed(desk: Desk) -> None:
    await desk.accept_waiting()
    for on in (lane(), frozen()):
        await desk.save(on)
        assert (await desk.look()).probe is None


async def test_a_failed_probe_keeps_its_place_in_the_queue(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    on = disabled()
    await desk.fail(waiting[0], None, on=on)
    view = await desk.look()
    assert [entry.place.attempts for entry in view.fresh] == [1, 0]
    assert view.probe == view.fresh[0]


async def test_a_lane_with_nothing_waiting_has_no_probe(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    await desk.deliver(entry)
    await desk.save(disabled())
    view = await desk.look()
    assert (view.probe, view.heads.probe_from) == (None, None)


async def test_the_place_of_a_probe_that_is_retried_is_whole(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.fail(entry, retry_at(4, NOW + MINUTE), number=6)
    await desk.save(disabled())
    probe = (await desk.look()).probe
    assert probe is not None
    assert (probe.place.retry, probe.place.attempts, probe.place.due) == (4, 6, NOW + MINUTE)
