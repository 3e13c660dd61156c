"""One attempt: the bytes of its head, its origin and deadline, and its outcome."""

import errno
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import pytest
import trio

from holdfast.config import SignSettings
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.message import ErrorKind, Fault, Message
from holdfast.core.outcome import Outcome
from holdfast.delivery.courier import Courier, RouteTerms
from holdfast.delivery.egress import ROUTE_ZONE
from holdfast.delivery.signing import Signer
from holdfast.http.dial import Origin
from holdfast.http.exceptions import (
    BadAnswer,
    ConnectError,
    ConnectionReset,
    ExchangeError,
    ExchangeTimeout,
    ProxyError,
    TlsError,
)
from tests.support.answers import GivenAnswer

NOW = 1_800_000_000_000
WALL = NOW - 3 * 86_400_000
"""The wall clock, which may differ from holdfast's clock by days."""
ID = bytes(15) + b"\x07"
ID_LINE = b"webhook-id: msg_00000000000000000000000000000007\r\n"
ADDRESS = "192.0.2.1:443"


@dataclass
class Wire:
    """A transport that records its requests and ends as the test wants."""

    end: Any = 200
    takes: float = 0
    sent: list[tuple[Origin, bytes, bytes, float]] = field(default_factory=list)

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> GivenAnswer:
        self.sent.append((origin, head, body, deadline))
        await trio.sleep(self.takes)
        if isinstance(self.end, Exception):
            raise self.end
        if isinstance(self.end, GivenAnswer):
            return self.end
        return GivenAnswer(self.end, [], b"", ADDRESS)


def message(**changes: Any) -> Message:
    fields: dict[str, Any] = {
        "id": ID,
        "lane": "api.example.com:443",
        "host": "api.example.com:443",
        "scheme": "https",
        "authority": "api.example.com",
        "path": b"/hooks/7?x=1",
        "method": "POST",
        "headers": (),
        "body": b"{}",
        "accepted_at": NOW,
        "born": NOW,
    }
    return Message(**fields | changes)


async def carry(end: Any = 200, *, takes: float = 0, routes: Any = None, **changes: Any) -> tuple[Outcome, Wire]:
    wire = Wire(end, takes)
    courier = Courier(wire, timeout=30_000, user_agent="holdfast/1", routes=routes or {})
    return await courier.carry(message(**changes), NOW, WALL), wire


async def head_of(**changes: Any) -> bytes:
    _, wire = await carry(**changes)
    return wire.sent[0][1]


# -- the head ----------------------------------------------------------------------------------------------------------


async def test_the_head_is_written_exactly() -> None:
    assert await head_of(headers=((b"content-type", b"application/json"), (b"x-a", b"1"), (b"x-a", b"2 "))) == (
        b"POST /hooks/7?x=1 HTTP/1.1\r\n"
        b"host: api.example.com\r\n"
        b"content-type: application/json\r\n"
        b"x-a: 1\r\n"
        b"x-a: 2 \r\n" + ID_LINE + b"user-agent: holdfast/1\r\n"
        b"content-length: 2\r\n"
        b"\r\n"
    )


async def test_the_body_is_sent_unchanged() -> None:
    _, wire = await carry(body=b"\x00\xff\r\n")
    assert wire.sent[0][2] == b"\x00\xff\r\n"


async def test_an_apps_own_webhook_id_is_kept() -> None:
    head = await head_of(headers=((b"webhook-id", b"mine"),))
    assert head.count(b"webhook-id") == 1
    assert b"\r\nwebhook-id: mine\r\n" in head


async def test_the_user_agent_is_added_only_if_the_app_sent_none() -> None:
    head = await head_of(headers=((b"user-agent", b"app/2"),))
    assert head.count(b"user-agent") == 1
    assert b"\r\nuser-agent: app/2\r\n" in head


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"", b"0"),
        ("PUT", b"", b"0"),
        ("PATCH", b"", b"0"),
        ("DELETE", b"", None),
        ("DELETE", b"abc", b"3"),
        ("POST", b"x" * 100_000, b"100000"),
    ],
)
async def test_content_length_is_sent_with_every_body_and_with_methods_that_expect_one(
    method: str, body: bytes, length: bytes | None
) -> None:
    head = await head_of(method=method, body=body)
    assert head.startswith(method.encode() + b" /hooks/7?x=1 HTTP/1.1\r\n")
    lines = [line for line in head.split(b"\r\n") if line.startswith(b"content-length")]
    assert lines == ([] if length is None else [b"content-length: " + length])
    assert head.endswith(b"\r\n\r\n")


async def test_path_bytes_and_authority_are_sent_unchanged() -> None:
    head = await head_of(path=b"/a%2Fb//c?q=%20&r=\xe9", authority="api.example.com:8443")
    assert head.startswith(b"POST /a%2Fb//c?q=%20&r=\xe9 HTTP/1.1\r\nhost: api.example.com:8443\r\n")


async def test_every_attempt_of_one_message_carries_the_same_bytes() -> None:
    assert await head_of() == await head_of()


# -- origin and deadline -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("api.example.com:443", Origin("https", "api.example.com", 443)),
        ("[2606:4700::1]:8443", Origin("https", "2606:4700::1", 8443)),
        ("1.1.1.1:80", Origin("https", "1.1.1.1", 80)),
    ],
)
async def test_the_origin_is_the_messages_host_and_port(host: str, origin: Origin) -> None:
    _, wire = await carry(host=host)
    assert wire.sent[0][0] == origin


ROUTES = {"billing": RouteTerms("api.example.com:443", 10_000), "plain": RouteTerms("api.example.com:443")}


@pytest.mark.parametrize(
    ("route", "host", "zone"),
    [
        ("billing", "api.example.com:443", ROUTE_ZONE),
        ("billing", "api.example.com:8443", ""),
        (None, "api.example.com:443", ""),
        ("gone", "api.example.com:443", ""),
    ],
)
async def test_only_a_routes_own_host_and_port_are_exempt(route: str | None, host: str, zone: str) -> None:
    _, wire = await carry(route=route, host=host, routes=ROUTES)
    assert wire.sent[0][0].zone == zone


@pytest.mark.parametrize(("route", "seconds"), [(None, 30), ("billing", 10), ("plain", 30), ("gone", 30)])
async def test_the_deadline_is_the_routes_or_the_default(
    autojump_clock: object, route: str | None, seconds: float
) -> None:
    await trio.sleep(5)
    _, wire = await carry(route=route, routes=ROUTES)
    assert wire.sent[0][3] == trio.current_time() + seconds


# -- outcomes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        (ExchangeTimeout("no answer in time", ADDRESS), ErrorKind.TIMEOUT, Fault.HOST),
        (ExchangeTimeout("no address in time", None, "resolve"), ErrorKind.TIMEOUT, Fault.HOST),
        (TlsError("bad certificate", ADDRESS), ErrorKind.TLS, Fault.HOST),
        (ConnectionReset("closed", ADDRESS), ErrorKind.RESET, Fault.HOST),
        (BadAnswer("not HTTP", ADDRESS), ErrorKind.PROTOCOL, Fault.HOST),
        (ConnectError("refused", ADDRESS, errno.ECONNREFUSED), ErrorKind.CONNECT, Fault.HOST),
        (ConnectError("unreachable", ADDRESS, errno.EHOSTUNREACH), ErrorKind.CONNECT, Fault.HOST),
        (ConnectError("no way", ADDRESS, None), ErrorKind.CONNECT, Fault.HOST),
        (ConnectError("descriptors", ADDRESS, errno.EMFILE), ErrorKind.CONNECT, Fault.HERE),
        (ConnectError("descriptors", ADDRESS, errno.ENFILE), ErrorKind.CONNECT, Fault.HERE),
        (ConnectError("buffers", ADDRESS, errno.ENOBUFS), ErrorKind.CONNECT, Fault.HERE),
        (ConnectError("memory", ADDRESS, errno.ENOMEM), ErrorKind.CONNECT, Fault.HERE),
        (ConnectError("no route", ADDRESS, errno.ENETUNREACH), ErrorKind.CONNECT, Fault.HERE),
        (ProxyError("the proxy answered 502", ADDRESS, here=False, status=502), ErrorKind.PROXY, Fault.HOST),
        (ProxyError("the proxy answered 407", ADDRESS, here=True, status=407), ErrorKind.PROXY, Fault.HERE),
        (ExchangeTimeout("the proxy did not answer in time", ADDRESS, "proxy"), ErrorKind.TIMEOUT, Fault.HOST),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}" if isinstance(value, Exception) else "",
)
async def test_every_error_of_an_exchange_becomes_an_outcome(
    error: ExchangeError, kind: ErrorKind, fault: Fault
) -> None:
    outcome, _ = await carry(error)
    assert (outcome.error, outcome.fault, outcome.detail) == (kind, fault, error.detail)
    assert (outcome.address, outcome.status) == (error.address, None)


def test_every_error_class_of_an_exchange_has_a_case() -> None:
    assert {ErrorKind(error.kind) for error in ExchangeError.__subclasses__()} == {
        ErrorKind.TIMEOUT,
        ErrorKind.TLS,
        ErrorKind.RESET,
        ErrorKind.PROTOCOL,
        ErrorKind.CONNECT,
        ErrorKind.PROXY,
    }


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        (EgressDenied("10.0.0.1 is private"), ErrorKind.EGRESS_DENIED, Fault.HERE),
        (NameNotResolved("try again", here=True), ErrorKind.DNS, Fault.HERE),
        (NameNotResolved("no such name", here=False), ErrorKind.DNS, Fault.HOST),
    ],
)
async def test_errors_of_the_guard_and_the_resolver_become_outcomes(
    error: Exception, kind: ErrorKind, fault: Fault
) -> None:
    outcome, _ = await carry(error)
    assert (outcome.error, outcome.fault, outcome.detail) == (kind, fault, str(error))


async def test_an_unknown_error_is_raised() -> None:
    with pytest.raises(RuntimeError):
        await carry(RuntimeError("a bug"))


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_2xx_is_success(status: int) -> None:
    outcome, _ = await carry(status)
    assert outcome.delivered
    assert (outcome.status, outcome.address) == (status, ADDRESS)


@pytest.mark.parametrize("status", [300, 301, 307, 400, 404, 410, 429, 500, 503, 599])
async def test_every_other_status_is_a_failure_of_the_hosts(status: int) -> None:
    outcome, _ = await carry(status)
    assert (outcome.status, outcome.fault, outcome.error) == (status, Fault.HOST, None)


async def test_the_first_kib_of_a_failed_answer_is_kept() -> None:
    outcome, _ = await carry(GivenAnswer(500, [], b"x" * 5_000, ADDRESS, complete=False))
    assert outcome.answer == b"x" * 1_024


async def test_retry_after_in_seconds_counts_from_the_answer(autojump_clock: object) -> None:
    answer = GivenAnswer(503, [(b"retry-after", b"60")], b"", ADDRESS)
    outcome, _ = await carry(answer, takes=7)
    assert outcome.retry_after == NOW + 67_000


async def test_retry_after_as_a_date_is_read_by_the_wall_clock_of_the_answer(autojump_clock: object) -> None:
    date = formatdate(WALL / 1000 + 67, usegmt=True).encode()
    outcome, _ = await carry(GivenAnswer(503, [(b"retry-after", date)], b"", ADDRESS), takes=7)
    assert outcome.retry_after == NOW + 67_000
    late, _ = await carry(GivenAnswer(503, [(b"retry-after", date)], b"", ADDRESS), takes=67)
    assert late.retry_after is None


async def test_a_signature_has_the_time_of_the_wall_clock() -> None:
    signer = Signer(SignSettings("standard-webhooks", None, "KEY"), {"KEY": "whsec_" + "c2VjcmV0" * 4})
    head = await head_of(routes={"billing": RouteTerms("api.example.com:443", signer=signer)}, route="billing")
    assert b"\r\nwebhook-timestamp: %d\r\n" % (WALL // 1000) in head
