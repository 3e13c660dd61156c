"""With `circuit.scope = "url"` each URL has a circuit of its own; limits still go by host:port."""

from typing import Any

from holdfast.core.circuit import CircuitState
from holdfast.core.message import MessageState
from tests.sim.stores import long_on_each_store
from tests.sim.world import HOST, TRIPS_AT_3, Request, World, asks_for, settle, slow, until, world

pytestmark = long_on_each_store

ONE, TWO = f"http://{HOST}/one", f"http://{HOST}/two"


def url_world(**sections: Any) -> World:
    return world(**sections, circuit=TRIPS_AT_3 | {"scope": "url"})


async def test_one_urls_circuit_trips_and_the_others_does_not(autojump_clock: object) -> None:
    it = url_world()
    it.scripts[HOST] = lambda request: 500 if request.path == "/one" else 200
    async with it.gateway():
        await it.accept_many(3, path="/one", by_url=True)
        await it.sleep_to(10)
        other = await it.accept(path="/two", by_url=True)
        waits = await it.accept(path="/one", by_url=True)
        await it.sleep_to(650)
        assert await it.circuit_state(ONE) is CircuitState.DISABLED
        assert await it.circuit_state(TWO) is CircuitState.ENABLED
        assert await it.state(other) is MessageState.DELIVERED
        assert await it.state(waits) is MessageState.HELD
    assert [request.at for request in it.requests if request.path == "/one"] == [0, 0, 0, 600]


async def test_limits_go_by_host_and_port(autojump_clock: object) -> None:
    it = url_world(delivery={"per_host": 4})
    it.scripts[HOST] = slow(1)
    ids: list[str] = []
    async with it.gateway():
        for _ in range(20):
            ids += [await it.accept(path=path, by_url=True) for path in ("/one", "/two", "/two")]
        await it.accept("a.test:81", path="/one", by_url=True)
        await it.sleep_to(30)
    assert max(request.beside for request in it.requests) == 4
    assert it.times(host="a.test:81") == [0]
    started = it.ids()
    in_fours = [(set(started[at : at + 4]), set(ids[at : at + 4])) for at in range(0, len(ids), 4)]
    assert all(those == wanted for those, wanted in in_fours), "over all of its URLs in order"


async def test_retry_after_on_503_holds_all_urls_of_the_host(autojump_clock: object) -> None:
    it = url_world()
    it.scripts[HOST] = until(1, asks_for(503, 300))
    async with it.gateway():
        await it.accept(path="/one", by_url=True)
        await it.sleep_to(10)
        await it.accept(path="/two", by_url=True)
        await it.sleep_to(1_000)
    assert it.times() == [0, 300, 300]


async def test_after_a_restart_the_host_begins_in_slow_start_whichever_url_comes_first(autojump_clock: object) -> None:
    it = url_world()
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        for path in ("/one", "/two", "/three"):
            await it.accept(path=path, by_url=True)
        await it.sleep_to(5)
    async with it.gateway():
        for _ in range(10):
            for path in ("/one", "/two", "/three"):
                it.ledger.submit(it.accepting(path=path, by_url=True))
        await it.sleep_to(20)
    assert [it.most_open(at) for at in (5, 6, 7)] == [1, 2, 4]


async def test_a_url_that_comes_back_puts_its_host_in_slow_start(autojump_clock: object) -> None:
    it = url_world()

    def answer(request: Request) -> Any:
        return 500 if request.path == "/one" and request.at < 600 else slow(1)(request)

    it.scripts[HOST] = answer
    async with it.gateway():
        await it.accept_many(30, path="/one", by_url=True)
        await it.sleep_to(650)
        assert await it.circuit_state(ONE) is CircuitState.ENABLED
    assert [it.most_open(at) for at in (600, 601, 602, 603)] == [1, 1, 2, 4]


async def test_after_a_restart_a_new_url_of_a_known_host_begins_in_slow_start(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept(path="/old", by_url=True)
        await settle()
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        await it.accept_many(5, path="/new", by_url=True)
        await it.sleep_to(10)
    assert it.times()[1:] == [0, 1, 1, 2, 2]
