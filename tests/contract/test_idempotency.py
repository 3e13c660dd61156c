"""The same key within its lifetime is the same message, whatever became of it."""

from pytest import mark, raises

from holdfast.core.errors import StoreFull
from holdfast.core.message import MessageId
from holdfast.store.port import NO_LIMIT, Accept, Accepted, Conflict, Duplicate, Purge
from tests.contract.builders import EPOCH, MINUTE, Desk, idempotency
from tests.contract.conftest import embedded


async def again(desk: Desk, body: str = "body", name: str = "key") -> object:
    return await desk.ledger.perform(Accept(desk.message(), idempotency(name, body)))


async def first(desk: Desk) -> MessageId:
    return (await desk.accept(key=idempotency("key"))).message.id


async def test_the_same_key_and_body_is_the_first_message(desk: Desk) -> None:
    id = await first(desk)
    before = desk.kept()
    assert await again(desk) == Duplicate(id)
    assert desk.kept() == before


async def test_the_same_key_for_another_body_is_a_conflict(desk: Desk) -> None:
    await first(desk)
    assert await again(desk, "other") == Conflict()


async def test_another_key_is_another_message(desk: Desk) -> None:
    await first(desk)
    assert await desk.ledger.perform(Accept(desk.message(), idempotency("other"))) == Accepted(active=True)


async def test_a_duplicate_is_found_within_its_own_group(desk: Desk) -> None:
    one, two, three = (desk.message() for _ in range(3))
    results = await desk.together(
        Accept(one, idempotency("key")), Accept(two, idempotency("key")), Accept(three, idempotency("key", "other"))
    )
    assert results == [Accepted(active=True), Duplicate(one.id), Conflict()]
    assert desk.recorder.accepted == [one]


async def test_a_key_is_known_after_a_restart(desk: Desk) -> None:
    id = await first(desk)
    await desk.restart_after_a_kill()
    assert await again(desk) == Duplicate(id)


@mark.parametrize("end", ["deliver", "add_dead"])
async def test_a_key_is_known_whatever_became_of_the_message(desk: Desk, end: str) -> None:
    entry = await desk.accept(key=idempotency("key"))
    await getattr(desk, end)(entry)
    assert await again(desk) == Duplicate(entry.message.id)


@mark.parametrize("begin", [0, 1, EPOCH // 2, EPOCH - 1])
async def test_a_key_lives_its_whole_time_over_the_border_of_an_epoch(desk: Desk, begin: int) -> None:
    desk.clock.at += EPOCH - desk.clock.at % EPOCH + begin
    id = await first(desk)
    desk.clock.at += EPOCH - 1
    assert await again(desk) == Duplicate(id)
    desk.clock.at += 1
    assert await again(desk, "other") == Accepted(active=True)


async def test_a_key_used_again_after_its_time_counts_from_then(desk: Desk) -> None:
    await first(desk)
    desk.clock.at += EPOCH + MINUTE
    id = await first(desk)
    desk.clock.at += EPOCH - 1
    assert await again(desk) == Duplicate(id)


async def test_a_refused_message_leaves_its_key_free(desk: Desk) -> None:
    await desk.restart(host_share=0.000001)
    with raises(StoreFull):
        await again(desk)
    await desk.restart(host_share=0.5)
    assert await again(desk) == Accepted(active=True)


@mark.parametrize("lifetime", [1, 100, 1_000, 30 * EPOCH])
async def test_any_lifetime_will_do(desk: Desk, lifetime: int) -> None:
    await desk.restart(idempotency=lifetime)
    id = await first(desk)
    desk.clock.at += lifetime - 1
    assert await again(desk) == Duplicate(id)
    desk.clock.at += 1
    assert await again(desk) == Accepted(active=True)


@mark.parametrize("lifetimes", [(EPOCH, EPOCH // 24), (EPOCH // 24, EPOCH), (EPOCH, 7 * EPOCH, EPOCH // 2), (1, EPOCH)])
async def test_another_lifetime_loses_no_key_that_is_still_alive(desk: Desk, lifetimes: tuple[int, ...]) -> None:
    """A key lives as long as the present setting says, whichever it was stored under."""
    used: dict[str, tuple[int, bytes]] = {}
    for turn, lifetime in enumerate(lifetimes):
        await desk.restart(idempotency=lifetime)
        for step in range(5):
            name = f"{turn}-{step}"
            entry = await desk.accept(key=idempotency(name))
            used[name] = desk.clock.at, entry.message.id
            desk.clock.at += max(MINUTE, min(lifetimes) // 3)
        for name, (at, id) in used.items():
            if desk.clock.at - at < lifetime:
                assert await again(desk, name=name) == Duplicate(id)


async def test_keys_of_any_setting_leave_by_the_present_one(desk: Desk) -> None:
    for lifetime in (EPOCH, EPOCH // 24, 7 * EPOCH, EPOCH // 24):
        await desk.restart(idempotency=lifetime)
        for step in range(3):
            await desk.accept(key=idempotency(f"{lifetime}-{step}"))
            desk.clock.at += EPOCH
    desk.clock.at += 7 * EPOCH
    await desk.ledger.perform(Purge(0, 0, desk.clock.at - EPOCH // 24, 1_000))
    assert desk.keys() == 0
    assert (await desk.ledger.oldest_finished()).key is None


@embedded("the database keeps keys by time")
async def test_keys_that_make_room_leave_by_age(desk: Desk) -> None:
    names = [f"key {number}" for number in range(32)]
    for name in names:
        desk.clock.at += EPOCH // 32
        await desk.accept(key=idempotency(name))
    for _ in range(4):
        assert await desk.ledger.perform(Purge(0, 0, NO_LIMIT, 4)) == 4
    found = [isinstance(await again(desk, name=name), Duplicate) for name in names[:-1]]
    assert found == [False] * 16 + [True] * 15
