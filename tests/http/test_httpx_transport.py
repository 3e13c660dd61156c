"""The transport for httpx, in a real httpx client."""

import subprocess
import sys

import httpx
import pytest
import trio

from holdfast.http.exceptions import ProxyError
from holdfast.http.httpx_transport import HttpxTransport


async def test_a_client_posts_and_reuses_the_connection(receiver, transport_to):
    ok = b"HTTP/1.1 201 Created\r\nx-a: b\r\ncontent-length: 2\r\n\r\nok"
    async with receiver() as there:
        there.scripts = [there.answering(ok, ok)]
        async with httpx.AsyncClient(transport=HttpxTransport(transport_to(there.port))) as client:
            for reused in (False, True):
                response = await client.post("http://a.example:81/x?y=1", content=b"hello")
                assert (response.status_code, response.headers["x-a"], response.text) == (201, "b", "ok")
                assert response.extensions == {"address": there.address, "reused": reused}
        assert there.heard[0].startswith(b"POST /x?y=1 HTTP/1.1\r\nHost: a.example:81\r\n")
        assert there.heard[0].endswith(b"\r\n\r\nhello")


async def test_a_streamed_body_gets_a_length(receiver, transport_to):
    async def pieces():
        yield b"one"
        yield b"two"

    async with receiver() as there:
        there.scripts = [there.answering(b"HTTP/1.1 204 No Content\r\n\r\n")]
        async with httpx.AsyncClient(transport=HttpxTransport(transport_to(there.port))) as client:
            await client.post("http://a.example/", content=pieces())
        assert b"content-length: 6\r\n" in there.heard[0]
        assert b"ransfer" not in there.heard[0]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"garbage", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut", httpx.RemoteProtocolError),
    ],
)
async def test_bad_answers_are_protocol_errors(receiver, transport_to, answer, error):
    async with receiver() as there:
        there.scripts = [there.answering(answer)]
        async with httpx.AsyncClient(transport=HttpxTransport(transport_to(there.port))) as client:
            with pytest.raises(error):
                await client.get("http://a.example/")


async def test_timeouts_and_connect_errors_are_translated(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [lambda stream: trio.sleep_forever()]
        async with httpx.AsyncClient(transport=HttpxTransport(transport_to(there.port))) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get("http://a.example/", timeout=0.1)
    async with httpx.AsyncClient(transport=HttpxTransport(transport_to(there.port))) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://a.example/")
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.get("ftp://a.example/")


async def test_an_error_of_a_proxy_is_translated(transport_to):
    async def dial(origin, addresses, deadline, progress):
        raise ProxyError("the proxy answered 502", here=False, status=502)

    async with httpx.AsyncClient(transport=HttpxTransport(transport_to(1, dial=dial))) as client:
        with pytest.raises(httpx.ProxyError, match="502"):
            await client.get("http://a.example/")


async def test_a_silent_proxy_is_a_connect_timeout(transport_to):
    async def dial(origin, addresses, deadline, progress):
        progress("192.0.2.1:80", "proxy")
        await trio.sleep_forever()

    async with httpx.AsyncClient(transport=HttpxTransport(transport_to(1, dial=dial))) as client:
        with pytest.raises(httpx.ConnectTimeout):
            await client.get("http://a.example/", timeout=0.05)


def test_only_this_module_imports_httpx():
    program = (
        "import sys, holdfast.http.server, holdfast.http.transport, holdfast.http.codec\n"
        "assert 'httpx' not in sys.modules\n"
        "others = {name.split('.')[1] for name in sys.modules if name.startswith('holdfast.')}\n"
        "assert others == {'http'}, others\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
