"""Resolved addresses are judged before they are dialled. A resolver that hangs or lies affects no other name."""

import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest
import trio
import trio.testing

from holdfast.config import build
from holdfast.core.addresses import V4, V6, Range
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.delivery.egress import ROUTE_ZONE, Guard
from holdfast.delivery.resolver import FAILURE_KEPT_FOR, SHARE, THREADS, TIMEOUT
from holdfast.http.dial import Address, Origin
from holdfast.http.exceptions import ConnectError
from holdfast.http.transport import Transport
from tests.delivery.fake_resolver import PUBLIC, FakeResolver
from tests.support.address_spellings import numeric, samples
from tests.support.harness import PATIENCE

NAME = "hooks.example.com"


@pytest.fixture
def names() -> Iterator[FakeResolver]:
    names = FakeResolver()
    yield names
    names.let_go.set()


def guard(names: Callable[..., Any] = socket.getaddrinfo, **rules: Any) -> Guard:
    return Guard(build({"egress": rules}).egress, names)


def origin(host: str = NAME, port: int = 443, zone: str = "") -> Origin:
    return Origin("http", host, port, zone)


async def test_a_literal_is_resolved_to_itself(names: FakeResolver) -> None:
    it = guard(names)
    assert await it.resolve(origin("1.1.1.1")) == [(socket.AF_INET, ("1.1.1.1", 443))]
    assert await it.resolve(origin("2606:4700::1111")) == [(socket.AF_INET6, ("2606:4700::1111", 443))]
    assert names.asked == []


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "169.254.169.254", "localhost"])
async def test_denied_hosts_are_refused(host: str) -> None:
    with pytest.raises(EgressDenied):
        await guard().resolve(origin(host))


async def test_localhost_resolves_to_loopback_only() -> None:
    addresses = await guard(allow_loopback=True).resolve(origin("localhost"))
    assert addresses
    assert {address[0] for _, address in addresses} <= {"127.0.0.1", "::1"}


async def test_the_exemption_of_a_route_holds_in_its_zone_only() -> None:
    assert await guard().resolve(origin("localhost", 9999, ROUTE_ZONE))
    with pytest.raises(EgressDenied):
        await guard().resolve(origin("localhost", 9999))


async def test_a_denied_name_is_refused_before_it_is_looked_up(names: FakeResolver) -> None:
    with pytest.raises(EgressDenied, match=r"egress\.deny"):
        await guard(names, deny=["*.example.com"]).resolve(origin())
    assert names.asked == []


async def test_an_alias_of_a_denied_name_passes_and_only_its_network_closes_both(names: FakeResolver) -> None:
    """As the docs say: a sender can create a name for any address."""
    alias = origin("alias.example.org")
    by_name = guard(names, deny=[NAME, "*.internal.example"])
    with pytest.raises(EgressDenied):
        await by_name.resolve(origin())
    assert await by_name.resolve(alias) == [(socket.AF_INET, (PUBLIC, 443))]
    by_network = guard(names, deny=[f"{PUBLIC}/32"])
    for either in (origin(), alias):
        with pytest.raises(EgressDenied, match=rf"{PUBLIC} is denied by egress\.deny"):
            await by_network.resolve(either)


@pytest.mark.parametrize("own", [("127.0.0.1", 8800), ("0.0.0.0", 8800)])
@pytest.mark.parametrize("zone", ["", ROUTE_ZONE])
async def test_no_name_and_no_route_leads_to_holdfast_itself(
    names: FakeResolver, own: tuple[str, int], zone: str
) -> None:
    names.answers[NAME] = [["127.0.0.1"]]
    it = guard(names, allow_loopback=True, allow_ports=["*"])
    assert await it.resolve(origin(port=8800, zone=zone))
    it.own.add(own)
    with pytest.raises(EgressDenied, match="holdfast itself"):
        await it.resolve(origin(port=8800, zone=zone))


# -- every denied address, behind a name -------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*V4, *V6], ids=str)
async def test_a_name_opens_no_address_of_the_table(names: FakeResolver, row: Range) -> None:
    it = guard(names)
    for address in samples(row):
        mapped = [f"::ffff:{address}"] if address.version == 4 else []
        for spelled in (str(address), *mapped):
            names.answers[NAME] = [[spelled]]
            with pytest.raises(EgressDenied):
                await it.resolve(origin())


@pytest.mark.parametrize("row", V4, ids=str)
async def test_odd_spellings_that_the_system_would_read_as_an_address_are_judged_as_that_address(row: Range) -> None:
    """Ingest refuses them. If one came through, the system's resolver would read it as an address."""
    it = guard()
    for address in samples(row):
        assert isinstance(address, IPv4Address)
        for spelled in numeric(address):
            assert {ip_address(name[0]) for _, name in await it.look_up(spelled, 443)} == {address}
            with pytest.raises(EgressDenied):
                await it.resolve(origin(spelled))


async def test_only_permitted_addresses_of_a_name_are_returned(names: FakeResolver) -> None:
    names.answers[NAME] = [["127.0.0.1", PUBLIC, "10.0.0.1", "2606:4700::1111", "::1", "169.254.169.254"]]
    found = await guard(names).resolve(origin())
    assert [name[:2] for _, name in found] == [(PUBLIC, 443), ("2606:4700::1111", 443)]


async def test_an_empty_answer_is_the_hosts_fault(names: FakeResolver) -> None:
    names.answers[NAME] = [[]]
    with pytest.raises(NameNotResolved) as failed:
        await guard(names).resolve(origin())
    assert not failed.value.here


async def test_a_look_up_of_a_configured_host_is_not_judged(names: FakeResolver) -> None:
    names.answers[NAME] = [["10.0.0.1"]]
    assert await guard(names).look_up(NAME, 3128) == [(socket.AF_INET, ("10.0.0.1", 3128))]


# -- a resolver whose answers change -----------------------------------------------------------------------------------


@contextmanager
def trap() -> Iterator[tuple[int, Callable[[], bool]]]:
    """A loopback port, v4 and v6, that must get no connection; and a check that it got none."""
    with ExitStack() as ending:
        listeners = [ending.enter_context(socket.create_server(("127.0.0.1", 0)))]
        port = listeners[0].getsockname()[1]
        with suppress(OSError):
            listeners.append(ending.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6)))
        yield port, lambda: all(_is_untouched(listener) for listener in listeners)


def _is_untouched(listener: socket.socket) -> bool:
    """Connections that have ended can still be accepted."""
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return True
    return False


@asynccontextmanager
async def internet(guarded: Guard) -> AsyncIterator[tuple[Transport, list[Address], list[int]]]:
    """A transport whose public address is a server on this machine, so that nothing leaves it.

    Gives also what was dialled, as the guard gave it, and a list whose first number counts the server's requests.
    """
    dialled: list[Address] = []
    served = [0]
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.2"))[0]
    stand_in = (socket.AF_INET, listener.socket.getsockname())

    async def resolve(origin: Origin) -> list[Address]:
        judged = await guarded.resolve(origin)
        dialled.extend(judged)
        return [stand_in if name[0] == PUBLIC else (family, name) for family, name in judged]

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        served[0] += 1
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    transport = Transport(
        resolve, ssl_context=ssl.create_default_context(), max_answer=1024, max_idle_per_origin=4, idle_timeout=5
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield transport, dialled, served
        await transport.aclose()
        nursery.cancel_scope.cancel()


async def send(transport: Transport, to: Origin) -> int:
    head = b"POST / HTTP/1.1\r\nhost: hooks.example.com\r\ncontent-length: 0\r\n\r\n"
    return (await transport.exchange(to, head, b"", trio.current_time() + PATIENCE)).status


@pytest.mark.parametrize("answer", [[PUBLIC, "127.0.0.1", "::1"], ["127.0.0.1", "::1", PUBLIC]])
async def test_of_a_public_and_a_loopback_address_only_the_public_one_is_dialled(
    names: FakeResolver, answer: list[str]
) -> None:
    names.answers[NAME] = [answer]
    with trap() as (port, is_untouched):
        async with internet(guard(names, allow_ports=["*"])) as (transport, dialled, served):
            assert await send(transport, origin(port=port)) == 200
        assert is_untouched()
    assert dialled == [(socket.AF_INET, (PUBLIC, port))]
    assert names.asked == [NAME]
    assert served == [1]


async def test_a_denied_address_is_not_tried_after_a_public_one_fails(names: FakeResolver) -> None:
    names.answers[NAME] = [[PUBLIC, "127.0.0.1", "::1"]]
    guarded = guard(names, allow_ports=["*"])

    async def resolve(origin: Origin) -> list[Address]:
        # The public address is an address of this machine where nothing listens.
        return [(family, ("127.0.0.2", *name[1:]) if name[0] == PUBLIC else name)
                for family, name in await guarded.resolve(origin)]  # fmt: skip

    transport = Transport(
        resolve, ssl_context=ssl.create_default_context(), max_answer=1024, max_idle_per_origin=4, idle_timeout=5
    )
    with trap() as (port, is_untouched):
        with pytest.raises(ConnectError):
            await send(transport, origin(port=port))
        assert is_untouched()


async def test_every_look_up_is_judged_again(names: FakeResolver) -> None:
    names.answers[NAME] = [[PUBLIC], ["127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"]]
    with trap() as (port, is_untouched):
        async with internet(guard(names, allow_ports=["*"])) as (transport, dialled, served):
            assert await send(transport, origin(port=port)) == 200
            for _ in range(3):
                with pytest.raises(EgressDenied, match="loopback"):
                    await send(transport, origin(port=port))
        assert is_untouched()
    assert dialled == [(socket.AF_INET, (PUBLIC, port))]
    assert names.asked == [NAME] * 4
    assert served == [1]


async def test_the_trap_detects_a_connection(names: FakeResolver) -> None:
    names.answers[NAME] = [["127.0.0.1"]]
    with trap() as (port, is_untouched):
        async with internet(guard(names, allow_ports=["*"], allow_loopback=True)) as (transport, _, _):
            with trio.move_on_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send, transport, origin(port=port))
                    while is_untouched():
                        await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()
                return
    raise AssertionError("nobody came")


# -- a resolver that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".test"])
async def test_an_invalid_host_name_does_not_resolve_and_is_the_hosts_fault(host: str) -> None:
    with pytest.raises(NameNotResolved) as refused:
        await guard().resolve(origin(host))
    assert not refused.value.here


@pytest.mark.parametrize(
    ("error", "here"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.EINVAL, "Invalid argument"), True),
        (RuntimeError("can't start new thread"), True),
    ],
    ids=repr,
)
async def test_whose_fault_a_failed_look_up_is(names: FakeResolver, error: Exception, here: bool) -> None:
    names.answers[NAME] = [error]
    with pytest.raises(NameNotResolved, match=f"^{NAME}: ") as failed:
        await guard(names).resolve(origin())
    assert failed.value.here is here


async def test_all_waiting_attempts_get_the_failure_and_a_later_one_looks_up_again(
    names: FakeResolver, mock_clock: trio.testing.MockClock
) -> None:
    names.answers[NAME] = [socket.gaierror(socket.EAI_NONAME, "Name or service not known"), [PUBLIC]]
    names.hanging.add(NAME)
    it = guard(names)
    failures: list[NameNotResolved] = []

    async def wait() -> None:
        with pytest.raises(NameNotResolved) as failed:
            await it.resolve(origin())
        failures.append(failed.value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await names.until_asked()
        names.let_go.set()
    assert len({id(failure) for failure in failures}) == 3
    mock_clock.jump(FAILURE_KEPT_FOR)
    assert await it.resolve(origin()) == [(socket.AF_INET, (PUBLIC, 443))]
    assert names.asked == [NAME] * 2


# -- a resolver that hangs ---------------------------------------------------------------------------------------------


async def test_attempts_to_one_host_share_one_look_up_and_get_their_own_port(names: FakeResolver) -> None:
    names.hanging.add(NAME)
    it = guard(names, allow_ports=["*"])
    found: dict[int, Sequence[Address]] = {}

    async def wait(port: int) -> None:
        found[port] = await it.resolve(origin(port=port))

    async with trio.open_nursery() as nursery:
        for port in range(1, 101):
            nursery.start_soon(wait, port)
        await names.until_asked()
        names.let_go.set()
    assert found == {port: [(socket.AF_INET, (PUBLIC, port))] for port in range(1, 101)}
    assert names.asked == [NAME]


async def test_the_look_up_continues_when_the_first_attempt_gives_up(names: FakeResolver) -> None:
    names.hanging.add(NAME)
    it = guard(names)
    found: list[Sequence[Address]] = []

    async def wait() -> None:
        found.append(await it.resolve(origin()))

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as first:
            first.start_soon(it.resolve, origin())
            await names.until_asked()
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            first.cancel_scope.cancel()
        assert found == []
        names.let_go.set()
    assert found == [[(socket.AF_INET, (PUBLIC, 443))]]
    assert names.asked == [NAME]


async def test_a_resolver_that_does_not_answer_is_this_sides_failure_and_holds_one_thread(
    names: FakeResolver, mock_clock: trio.testing.MockClock
) -> None:
    names.hanging.add(NAME)
    it = guard(names)

    async def wait() -> None:
        with pytest.raises(NameNotResolved, match="did not answer in time") as failed:
            await it.resolve(origin())
        assert failed.value.here

    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
            if names.asked == []:
                await names.until_asked()
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(TIMEOUT)
    assert names.asked == [NAME]
    await names.let_all_go()
    names.hanging.clear()
    assert await it.resolve(origin()) == [(socket.AF_INET, (PUBLIC, 443))]


async def test_an_attempt_with_little_time_reports_the_look_up_that_it_waited_for(
    names: FakeResolver, mock_clock: trio.testing.MockClock
) -> None:
    names.hanging.add(NAME)
    it = guard(names)

    async def wait() -> None:
        with trio.fail_after(1), pytest.raises(NameNotResolved) as failed:
            await it.resolve(origin())
        assert failed.value.here

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await names.until_asked()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.95)


async def test_hanging_names_hold_a_bounded_number_of_threads_and_release_them(
    names: FakeResolver, mock_clock: trio.testing.MockClock
) -> None:
    hanging = [f"hooks.hanging-{number}.com" for number in range(THREADS)]
    behind = [f"hooks.behind-{number}.com" for number in range(5)]
    names.hanging.update(hanging)
    it = guard(names)
    failed: list[str] = []

    async def wait(host: str) -> None:
        with pytest.raises(NameNotResolved) as failure:
            await it.resolve(origin(host))
        assert failure.value.here
        failed.append(host)

    async with trio.open_nursery() as nursery:
        for host in hanging:
            nursery.start_soon(wait, host)
        await names.until_asked(THREADS)
        for host in behind:
            nursery.start_soon(wait, host)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(TIMEOUT)
    assert sorted(failed) == sorted([*hanging, *behind])
    assert sorted(names.asked) == sorted(hanging)
    await names.let_all_go()
    assert await it.resolve(origin()) == [(socket.AF_INET, (PUBLIC, 443))]
    assert names.asked[THREADS:] == [NAME], "a look-up that nobody waits for any more is not made"


async def test_a_few_hanging_names_delay_no_other(names: FakeResolver) -> None:
    hanging = [f"hanging-{number}.example.com" for number in range(SHARE - 1)]
    names.hanging.update(hanging)
    it = guard(names)
    async with trio.open_nursery() as nursery:
        for host in hanging:
            nursery.start_soon(it.resolve, origin(host))
        await names.until_asked(len(hanging))
        assert await it.resolve(origin()) == [(socket.AF_INET, (PUBLIC, 443))]
        names.let_go.set()
