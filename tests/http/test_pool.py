"""The limit of exchanges on new connections to one address."""

from functools import partial

import pytest
import trio

from holdfast.http.dial import Origin
from holdfast.http.exceptions import AddressBusy, ConnectError, ExchangeTimeout
from holdfast.http.transport import Transport
from tests.support.ports import refusing_port

HEAD = b"POST /hook HTTP/1.1\r\nhost: a.example\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
LIMIT = 3


async def post(transport: Transport, name: int = 0, seconds: float = 60):
    origin = Origin("http", f"{name}.example", 80)
    return await transport.exchange(origin, HEAD, b"", trio.current_time() + seconds)


async def hang(stream) -> None:
    await trio.sleep_forever()


async def test_all_names_of_an_address_share_its_limit(receiver, transport_to, settled):
    async with receiver() as there, trio.open_nursery() as nursery:
        there.scripts = [hang] * LIMIT
        transport = transport_to(there.port, max_per_address=LIMIT)
        for name in range(LIMIT):
            nursery.start_soon(post, transport, name)
        await settled()
        for name in range(LIMIT, 1_000):
            with pytest.raises(AddressBusy) as busy:
                await post(transport, name)
            assert busy.value.address == there.address
        assert there.connections == LIMIT
        nursery.cancel_scope.cancel()
    # Cancelled exchanges have left the address.
    async with receiver() as there:
        transport = transport_to(there.port, max_per_address=1)
        there.scripts = [there.answering(OK)]
        assert (await post(transport)).status == 200


@pytest.mark.parametrize("end", ["answer", "timeout", "refused", "cancelled"])
async def test_an_exchange_leaves_its_address_however_it_ends(receiver, transport_to, end):
    async with receiver() as there:
        port = refusing_port() if end == "refused" else there.port
        transport = transport_to(port, max_per_address=1, max_idle_per_origin=0)
        there.scripts = [there.answering(OK) if end == "answer" else hang] * 5
        for name in range(5):
            attempt = partial(post, transport, name, 0.02 if end == "timeout" else 60)
            if end == "answer":
                assert (await attempt()).status == 200
            elif end == "cancelled":
                with trio.move_on_after(0.02):
                    await attempt()
            else:
                with pytest.raises((ExchangeTimeout, ConnectError)):
                    await attempt()


async def test_a_reused_connection_does_not_count(receiver, transport_to, settled):
    async with receiver() as there, trio.open_nursery() as nursery:
        there.scripts = [there.answering(OK, OK), hang]
        transport = transport_to(there.port, max_per_address=1)
        await post(transport)
        nursery.start_soon(post, transport, 1)
        await settled()
        assert (await post(transport)).reused
        nursery.cancel_scope.cancel()
