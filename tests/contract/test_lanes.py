"""A lane's circuit and limits are stored exactly, and circuits can be found by state."""

from pytest import mark

from holdfast.core.circuit import Circuit, CircuitState, Reason, Window
from holdfast.core.lane import Host, Lane
from tests.contract.builders import EXPIRE_AFTER, HOUR, MINUTE, NOW, Desk, disabled, frozen, lane, retry_at


def states(desk_circuits: dict[CircuitState, int]) -> tuple[int, int, int]:
    order = (CircuitState.ENABLED, CircuitState.DISABLED, CircuitState.FROZEN)
    return tuple(desk_circuits[state] for state in order)


async def test_every_field_of_a_lane_is_kept(desk: Desk, kind: str) -> None:
    circuit = Circuit(
        state=CircuitState.DISABLED,
        since=NOW + 1,
        reason=Reason.FAILURE_RATE,
        consecutive_failures=1_234,
        window=Window([[7, 10, 3], [9, 100, 99]]),
        first_attempt_at=NOW + 2,
        last_attempt_at=NOW + 3,
        last_success_at=NOW + 4,
        silent_since=NOW + 5,
        enabled_at=NOW + 6,
        next_probe_at=NOW + 7,
        probed=bytes(range(24)),
    )
    host = Host("example.com:443", 16, limit=4, hold_until=NOW + 8)
    await desk.save(Lane("https://example.com/hook", host, circuit))
    view = await desk.ledger.circuit("https://example.com/hook")
    assert view is not None
    assert (view.record.limit, view.record.hold_until) == (4, NOW + 8)
    await desk.restart()
    view = await desk.ledger.circuit("https://example.com/hook")
    assert view is not None
    found = view.record.circuit
    assert (view.record.key, view.record.host) == ("https://example.com/hook", "example.com:443")
    assert view.record.hold_until == NOW + 8
    assert view.record.limit == 4
    assert kind == "postgres" or view.record.run == NOW, "whoever reads it sees that it is of another run"
    assert list(found.window.buckets) == [[7, 10, 3], [9, 100, 99]]
    assert (found.window.attempts, found.window.failures) == (110, 102)
    found.window = circuit.window
    assert found == circuit


async def test_a_lane_without_a_past_is_kept_too(desk: Desk) -> None:
    await desk.save(lane("new:443", Circuit()))
    view = await desk.ledger.circuit("new:443")
    assert view is not None
    assert view.record.circuit.window.attempts == 0
    assert view.record.circuit.reason is None


async def test_a_message_to_an_unseen_host_makes_an_enabled_lane(desk: Desk) -> None:
    await desk.accept("https://new.example/x", host="new.example:443")
    view = await desk.ledger.circuit("https://new.example/x")
    assert view is not None
    assert (view.record.host, view.record.limit) == ("new.example:443", 16)
    assert (view.record.circuit.state, view.record.circuit.since) == (CircuitState.ENABLED, NOW)


async def test_a_message_leaves_a_known_circuit_as_it_is(desk: Desk) -> None:
    await desk.save(frozen())
    await desk.accept()
    await desk.accept(delay=MINUTE)
    view = await desk.look()
    assert view.record is not None
    assert view.record.circuit.state is CircuitState.FROZEN


async def test_circuits_are_found_by_state_in_the_order_of_their_keys(desk: Desk) -> None:
    await desk.save(frozen("d"), disabled("b"), lane("c"), frozen("a"), lane("e"))
    found = {}
    for state in (None, *CircuitState):
        page, after = await desk.ledger.circuits(state, None, 10)
        found[state] = "".join(view.record.key for view in page)
        assert after is None
    assert found == {
        None: "abcde",
        CircuitState.ENABLED: "ce",
        CircuitState.DISABLED: "b",
        CircuitState.FROZEN: "ad",
    }


async def test_circuits_come_page_by_page(desk: Desk) -> None:
    keys = [f"host-{number:02}:443" for number in range(7)]
    await desk.save(*(frozen(key) for key in reversed(keys)))
    for state in (None, CircuitState.FROZEN):
        seen, after = [], None
        while True:
            page, after = await desk.ledger.circuits(state, after, 3)
            seen += [view.record.key for view in page]
            if after is None:
                break
            assert len(page) == 3
        assert seen == keys


async def test_a_circuit_counts_what_waits_and_what_is_dead(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=5)
    await desk.fail(waiting[0], retry_at(1, NOW + HOUR))
    await desk.add_dead(waiting[1])
    view = await desk.ledger.circuit("h:443")
    assert view is not None
    assert (view.waiting, view.dead) == (4, 1)


async def test_a_change_of_state_moves_the_circuit_in_the_statistics(desk: Desk) -> None:
    await desk.accept()
    assert states((await desk.ledger.statistics()).circuits) == (1, 0, 0)
    await desk.save(disabled())
    assert states((await desk.ledger.statistics()).circuits) == (0, 1, 0)
    await desk.save(frozen(), frozen("other:443"))
    assert states((await desk.ledger.statistics()).circuits) == (0, 0, 2)
    await desk.save(lane())
    assert states((await desk.ledger.statistics()).circuits) == (1, 0, 1)


async def test_statistics_count_messages_where_they_stand(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=4)
    await desk.accept("other:443")
    await desk.fail(waiting[0], retry_at(1, NOW + HOUR))
    await desk.add_dead(waiting[1])
    await desk.deliver(waiting[2])
    statistics = await desk.ledger.statistics()
    assert (statistics.first, statistics.retry, statistics.waiting, statistics.dead) == (2, 1, 3, 1)
    assert not statistics.full
    assert 0 < statistics.used_bytes < statistics.max_bytes == 1 << 30


async def test_statistics_know_the_oldest_the_next_due_and_the_first_to_expire(desk: Desk) -> None:
    empty = await desk.ledger.statistics()
    assert (empty.oldest_waiting_at, empty.next_due_at, empty.earliest_expiry_at) == (None, None, None)
    await desk.retrying(NOW + HOUR, lane="a")
    await desk.retrying(NOW + MINUTE, lane="b")
    await desk.save(frozen("b"))
    found = await desk.ledger.statistics()
    assert found.oldest_waiting_at == NOW
    assert found.next_due_at == NOW + MINUTE
    assert found.earliest_expiry_at == NOW + 1 + EXPIRE_AFTER


@mark.parametrize("names", [("active", "waiting"), ("waiting", "active")])
async def test_the_oldest_is_the_oldest_of_active_and_waiting(desk: Desk, names: tuple[str, str]) -> None:
    for name in names:
        await (desk.accept(name) if name == "active" else desk.accept_waiting(name))
        desk.clock.at += MINUTE
    assert (await desk.ledger.statistics()).oldest_waiting_at == NOW
