"""Only waiting and dead messages fill the store; a host fills its own share first; room comes back by itself."""

from pytest import MonkeyPatch, mark, raises

from holdfast.core.errors import StoreFull
from holdfast.core.message import Entry
from holdfast.store.embedded import shares
from holdfast.store.embedded.shares import WINDOW
from holdfast.store.embedded.tables import Table
from holdfast.store.port import Accept, Deliver, EvictLanes, Fail, Purge
from tests.contract.builders import EVER, NOW, Desk, active, attempt, dump, frozen, ids, lane, retry_at, success
from tests.contract.conftest import OpenDesk, embedded
from tests.contract.consistency import check_shares

MIB = 1 << 20
BODY = bytes(60 * 1024)
LARGE = bytes(250 * 1024)
SHARE = 64 * 1024
"""What a message with BODY counts for."""


async def fill(desk: Desk, body: bytes = BODY) -> list[Entry]:
    """Accept until the store refuses."""
    accepted: list[Entry] = []
    while len(accepted) < 1_000:
        try:
            accepted.append(await desk.accept(body=body))
        except StoreFull:
            return accepted
    raise AssertionError("never full")


async def test_a_host_over_its_share_is_refused_alone(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=10 * SHARE / (64 * MIB))
    assert len(await fill(desk)) == 10
    with raises(StoreFull) as refused:
        await desk.accept()
    assert refused.value.host == "h:443"
    await desk.accept("other:443")
    assert not (await desk.ledger.statistics()).full


async def test_lanes_of_one_host_share_its_share(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=10 * SHARE / (64 * MIB))
    for number in range(10):
        await desk.accept(f"https://h/{number}", BODY, host="h:443")
    with raises(StoreFull):
        await desk.accept("https://h/new", BODY, host="h:443")


async def test_a_share_counts_within_one_group(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=3 * SHARE / (64 * MIB))
    results = await desk.together(*(Accept(desk.message(body=BODY)) for _ in range(5)))
    assert [isinstance(result, StoreFull) for result in results] == [False, False, False, True, True]


@mark.parametrize("end", ["delivered", "purged"])
async def test_a_share_comes_back(open_desk: OpenDesk, end: str) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=3 * SHARE / (64 * MIB))
    entry, *_ = await fill(desk)
    if end == "delivered":
        await desk.deliver(entry)
    else:
        await desk.add_dead(entry)
        with raises(StoreFull):
            await desk.accept(body=BODY)
        await desk.ledger.perform(Purge(0, EVER, 0, 10))
    await desk.accept(body=BODY)


async def test_a_share_survives_a_restart_exactly(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=5 * SHARE / (64 * MIB))
    await fill(desk)
    await desk.restart()
    with raises(StoreFull):
        await desk.accept(body=BODY)


async def test_a_share_survives_kills_exactly(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=40 * SHARE / (64 * MIB))
    assert len(await fill(desk)) == 40
    for _ in range(5):
        await desk.restart_after_a_kill()
        assert await fill(desk) == []
        for entry in (await desk.look(fresh=3)).fresh:
            await desk.deliver(entry)
        await desk.restart_after_a_kill()
        assert len(await fill(desk)) == 3
        desk.check_shares()


@embedded("shares are written there when they have drifted")
async def test_shares_of_many_hosts_are_exact_whatever_has_gone_to_their_table(open_desk: OpenDesk) -> None:
    desk = await open_desk()
    quiet = [desk.message(f"quiet{number}:443") for number in range(30)]
    await desk.together(*(Accept(message) for message in quiet))
    hosts = [f"h{number}:443" for number in range(WINDOW // 40)]
    for round in range(100):
        entries = [desk.message(host) for host in hosts]
        await desk.together(*(Accept(message) for message in entries))
        leaving = entries[: 20 + round % 10]
        await desk.together(*(Deliver(active(message), success(), None) for message in leaving))
        if round % 20 == 19:
            await desk.restart_after_a_kill()
    tables = dump(desk.engine)
    check_shares(tables)
    assert len(tables[Table.SHIFTS]) < 100
    assert {host for host, _ in tables[Table.SHARES]} >= {message.host.encode() for message in quiet}


@embedded("shares are written there when they have drifted")
async def test_a_host_whose_messages_come_and_go_is_not_written(open_desk: OpenDesk, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WINDOW", 50)
    desk = await open_desk()
    for _ in range(100):
        message = desk.message()
        await desk.together(Accept(message))
        await desk.together(Deliver(active(message), success(), None))
    tables = dump(desk.engine)
    check_shares(tables)
    assert tables[Table.SHARES] == []


async def test_what_a_failed_group_would_have_held_is_not_counted(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=64 * MIB, host_share=3 * SHARE / (64 * MIB))
    [one, two] = [await desk.accept(body=BODY) for _ in range(2)]
    await desk.restart()
    [first, _] = (await desk.look()).fresh
    await desk.deliver(first)
    await desk.deliver(first)
    assert len(await fill(desk)) == 2
    assert ids([one, two])


async def test_a_full_store_refuses_messages_and_records_outcomes(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=8 * MIB, host_share=1.0)
    accepted = await fill(desk, LARGE)
    statistics = await desk.ledger.statistics()
    assert statistics.full
    assert 0.8 < statistics.used_bytes / statistics.max_bytes < 1.0
    with raises(StoreFull) as refused:
        await desk.accept("other:443")
    assert refused.value.host is None
    await desk.fail(accepted[0], retry_at(1, NOW))
    await desk.add_dead(accepted[1])
    assert ids((await desk.look()).due) == ids(accepted[:1])


async def test_a_full_store_heals_by_itself(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=8 * MIB, host_share=1.0)
    accepted = await fill(desk, LARGE)
    for entry in accepted[: len(accepted) // 2]:
        await desk.deliver(entry)
    await desk.accept(body=LARGE)
    assert not (await desk.ledger.statistics()).full


async def test_a_full_store_can_be_emptied_and_filled_again(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=8 * MIB, host_share=1.0)
    first = await fill(desk, LARGE)
    for entry in first:
        await desk.deliver(entry)
    second = await fill(desk, LARGE)
    assert abs(len(first) - len(second)) <= len(first) // 10


async def test_a_full_store_is_full_after_a_restart(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=8 * MIB, host_share=1.0)
    accepted = await fill(desk, LARGE)
    await desk.restart()
    with raises(StoreFull):
        await desk.accept("other:443")
    assert ids((await desk.look(fresh=3)).fresh) == ids(accepted[:3])


async def test_a_group_of_outcomes_and_messages_is_split_when_full(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=8 * MIB, host_share=1.0)
    accepted = await fill(desk, LARGE)
    results = await desk.together(
        Fail(accepted[0], attempt(), retry_at(1, NOW), lane()), Accept(desk.message("other:443"))
    )
    assert results[0] is None
    assert isinstance(results[1], StoreFull)
    assert ids((await desk.look()).due) == ids(accepted[:1])


async def test_a_refused_message_leaves_no_trace(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=8 * MIB, host_share=1.0)
    await fill(desk, LARGE)
    message = desk.message("other:443")
    before = desk.kept()
    [refused] = await desk.together(Accept(message))
    assert isinstance(refused, StoreFull)
    assert desk.kept() == before
    assert await desk.ledger.circuit("other:443") is None
    assert await desk.ledger.message_view(active(message).message.id) is None


@embedded("messages alone count there")
async def test_room_for_outcomes_is_set_aside_for_each_message(open_desk: OpenDesk) -> None:
    desk = await open_desk(max_size=2 * MIB, host_share=1.0)
    accepted = await fill(desk, b"{}")
    statistics = await desk.ledger.statistics()
    assert statistics.used_bytes + statistics.reserved_bytes > 0.9 * 2 * MIB
    assert statistics.reserved_bytes / len(accepted) > 9 * 1024
    before = statistics.reserved_bytes
    await desk.deliver(accepted[0])
    assert (await desk.ledger.statistics()).reserved_bytes < before - 9 * 1024


@embedded("circuits take no part of its size there")
async def test_records_of_idle_circuits_make_room_and_no_others(open_desk: OpenDesk) -> None:
    desk = await open_desk()
    idle, used = [f"idle{number}:443" for number in range(5)], "used:443"
    for name in (*idle, used):
        await desk.deliver(await desk.accept(name))
        desk.clock.at += 1
    await desk.accept_waiting("waiting:443")
    await desk.retrying(EVER, lane="retrying:443")
    await desk.add_dead(await desk.accept("dead:443"))
    await desk.save(frozen("frozen:443"))
    evicted: list[str] = []
    after: bytes | None = None
    for _ in range(10):
        lanes, after = await desk.ledger.perform(EvictLanes(after, 2, {used}))
        evicted += lanes
        if after is None:
            break
    assert evicted == idle
    left = [view.record.key for view in (await desk.ledger.circuits(None, None, 100))[0]]
    assert left == ["dead:443", "frozen:443", "retrying:443", used, "waiting:443"]
    desk.check()
