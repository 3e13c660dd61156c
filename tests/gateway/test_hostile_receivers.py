"""Hostile receivers: an attempt ends by its deadline, is recorded as what it was, costs no memory, and leaves the
gateway unaffected.
"""

import gzip
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gateway.hostile import Caller, Memory, Script, raw_receiver
from tests.support import fork_server
from tests.support.harness import PATIENCE, Gateway, Receiver, running, until

MOST_MEMORY = 24 * 1024
"""In kB, for dozens of attempts at once; one flood alone, if it were kept, would be more."""
TEN_GB = 10 << 30
BOMB = gzip.compress(bytes(64 << 20), 1)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One attempt a message: its retry is due long after the test."""
    store = tmp_path_factory.mktemp("hostile") / "store"
    with fork_server.executing(), running(store, delivery__timeout="2s", retry__base="1h") as gateway:
        yield gateway


class Expected(NamedTuple):
    """How the one attempt ended."""

    status: int | None = None
    error: str | None = None

    @property
    def state(self) -> str:
        return "delivered" if self.status == 200 else "retrying"


TIMEOUT, PROTOCOL, RESET, TLS = (Expected(error=kind) for kind in ("timeout", "protocol", "reset", "tls"))


def answering(first: bytes, then: Callable[[Caller], None] = Caller.hang) -> Script:
    def script(caller: Caller) -> None:
        caller.request()
        caller.say(first)
        then(caller)

    return script


def head(status: int, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Said", *fields, "", ""]).encode()


def forever(data: bytes) -> Callable[[Caller], None]:
    return lambda caller: caller.say_forever(data)


def dripping(then: bytes, pause: float = 0.02) -> Callable[[Caller], None]:
    return lambda caller: caller.drip(b"", then, pause)


def shaking_hands(said: bytes, then: Callable[[Caller], None] = Caller.hang) -> Script:
    """Where TLS is spoken: says something else than a handshake."""

    def script(caller: Caller) -> None:
        caller.hear()
        caller.say(said)
        then(caller)

    return script


def resetting(caller: Caller) -> None:
    caller.reset()


def closing(caller: Caller) -> None:
    pass


def early(caller: Caller) -> None:
    """Answers on the head alone and reads none of the body."""
    caller.head()
    caller.say(head(413, "content-length: 5") + b"large")
    caller.wait()


FLOOD = b"x" * 65536
HANDSHAKE = b"\x16\x03\x03"
"""How a record of a handshake begins; its length follows."""
MODES: dict[str, tuple[Script, Expected]] = {
    "no answer": (answering(b""), TIMEOUT),
    "a status line dripped": (answering(b"HTTP/1.1 200 ", dripping(b"y")), TIMEOUT),
    "a head dripped": (answering(head(200)[:-2] + b"x: ", dripping(b"y")), TIMEOUT),
    "headers dripped": (answering(head(200)[:-2], dripping(b"x: y\r\n")), TIMEOUT),
    "a good body dripped": (answering(head(200, "content-length: 100000"), dripping(b"y")), Expected(200)),
    "a bad body dripped": (answering(head(500, "content-length: 100000"), dripping(b"y")), Expected(500)),
    "endless 1xx": (answering(b"", forever(head(103) * 64)), PROTOCOL),
    "slow endless 1xx": (answering(b"", dripping(head(100), 0.2)), TIMEOUT),
    "endless headers": (answering(head(200)[:-2], forever(b"x: y\r\n" * 1000)), PROTOCOL),
    "one endless header": (answering(head(200)[:-2] + b"x: ", forever(FLOOD)), PROTOCOL),
    "an endless status line": (answering(b"HTTP/1.1 200 ", forever(FLOOD)), PROTOCOL),
    "10 GB, good": (answering(head(200, f"content-length: {TEN_GB}"), forever(FLOOD)), Expected(200)),
    "10 GB, bad": (answering(head(500, f"content-length: {TEN_GB}"), forever(FLOOD)), Expected(500)),
    "endless chunks, good": (
        answering(head(200, "transfer-encoding: chunked"), forever(b"10000\r\n" + FLOOD + b"\r\n")),
        Expected(200),
    ),
    "endless chunks, bad": (
        answering(head(500, "transfer-encoding: chunked"), forever(b"10000\r\n" + FLOOD + b"\r\n")),
        Expected(500),
    ),
    "an endless chunk extension": (answering(head(200, "transfer-encoding: chunked"), forever(b"1;x")), Expected(200)),
    "a huge chunk": (
        answering(head(200, "transfer-encoding: chunked"), forever(b"f" * 15 + b"\r\n")),
        Expected(200),
    ),
    "until the end, without an end": (answering(head(500), forever(FLOOD)), Expected(500)),
    "a gzip bomb": (
        answering(head(500, "content-encoding: gzip", f"content-length: {len(BOMB)}") + BOMB),
        Expected(500),
    ),
    "a reset in the head": (answering(head(200)[:10], resetting), RESET),
    "a reset instead of an answer": (answering(b"", resetting), RESET),
    "a reset in a good body": (answering(head(200, "content-length: 100") + b"x", resetting), Expected(200)),
    "a reset in a bad body": (answering(head(500, "content-length: 100") + b"x", resetting), Expected(500)),
    "an end in the head": (answering(head(200)[:-2], closing), RESET),
    "an end instead of an answer": (answering(b"", closing), RESET),
    "2xx, then nothing": (answering(head(200, "content-length: 100")), Expected(200)),
    "an answer before the request is sent": (early, Expected(413)),
    "garbage": (answering(b"<html>it works</html>\n", forever(b"\n" * 1000)), PROTOCOL),
    "random bytes": (answering(bytes(range(255, -1, -1)) * 100), PROTOCOL),
    "a TLS record": (answering(b"\x16\x03\x01\x00\x05hello"), PROTOCOL),
    "HTTP/2": (answering(b"HTTP/2.0 200 OK\r\n\r\n"), PROTOCOL),
    "a NUL in a header": (answering(head(200, "x: a\0b")), PROTOCOL),
    "a bare LF": (answering(head(200).replace(b"\r\n", b"\n")), PROTOCOL),
    "a folded header": (answering(head(200, "x: a", " b")), PROTOCOL),
    "another protocol": (answering(head(101, "upgrade: x", "connection: upgrade")), PROTOCOL),
    "status 99": (answering(b"HTTP/1.1 099 No\r\n\r\n"), PROTOCOL),
    "status 999": (answering(head(999, "content-length: 0")), Expected(999)),
    "a redirect to the metadata address": (
        answering(head(302, "location: http://169.254.169.254/latest/", "content-length: 0")),
        Expected(302),
    ),
}


MODES_OF_TLS: dict[str, tuple[Script, Expected]] = {
    "TLS: no handshake": (shaking_hands(b""), TIMEOUT),
    "TLS: a handshake dripped": (shaking_hands(HANDSHAKE + b"\x40\x00", dripping(b"x")), TIMEOUT),
    "TLS: a plain answer": (shaking_hands(head(200)), TLS),
    "TLS: endless records": (shaking_hands(b"", forever(HANDSHAKE + b"\x40\x00" + b"\x02" * 16384)), TLS),
    "TLS: endless requests for a hello": (shaking_hands(b"", forever(HANDSHAKE + b"\x40\x00" + bytes(16384))), TLS),
    "TLS: a reset": (shaking_hands(HANDSHAKE, resetting), TLS),
    "TLS: an end": (shaking_hands(b"", closing), TLS),
}
ODD_FRAMING: dict[str, tuple[str, ...]] = {
    "two lengths": ("content-length: 1", "content-length: 2"),
    "a length twice": ("content-length: 2", "content-length: 2"),
    "length and chunks": ("content-length: 1", "transfer-encoding: chunked"),
    "an unknown coding": ("transfer-encoding: gzip",),
    "a negative length": ("content-length: -1",),
}
for odd, fields in ODD_FRAMING.items():
    MODES |= {f"{odd}, {status}": (answering(head(status, *fields) + b"xx"), Expected(status)) for status in (200, 500)}
MODES["chunks on HTTP/1.0"] = (
    answering(head(200, "transfer-encoding: chunked").replace(b"1.1", b"1.0") + b"xx"),
    Expected(200),
)
MODES |= MODES_OF_TLS
BODIES = {"an answer before the request is sent": b"r" * (1 << 20)}
"""Large enough that a receiver that stops reading holds it up."""


def ended(gateway: Gateway, id: str) -> dict[str, Any]:
    """The message once its attempt is recorded."""
    return dict(until(lambda: (it := gateway.message(id)) and it["attempts"] and it))


@pytest.fixture(scope="module")
def results(gateway: Gateway) -> Iterator[dict[str, Any]]:
    """All of them at once, each a host of its own: so it is the worst case, and takes the time of one."""
    with ExitStack() as stack:
        healthy = Receiver()
        stack.callback(healthy.close)
        ended(gateway, gateway.post(f"{healthy.url}/warm").json()["id"])
        memory = Memory(gateway)
        ids = {}
        for name, (script, _) in MODES.items():
            receiver = stack.enter_context(raw_receiver(script))
            url = receiver.url.replace("http", "https") if name in MODES_OF_TLS else receiver.url
            ids[name] = gateway.post(f"{url}/hook", BODIES.get(name, b"{}")).json()["id"]
        meanwhile = gateway.post(f"{healthy.url}/meanwhile").json()["id"]
        healthy.wait_for(lambda requests: any(request.id == meanwhile for request in requests))
        found: dict[str, Any] = {name: ended(gateway, id) for name, id in ids.items()}
        found["growth"] = memory.growth
        yield found


@pytest.mark.parametrize("name", MODES)
def test_each_kind_of_bad_answer_is_recorded_as_such(results: dict[str, Any], name: str) -> None:
    expected, message = MODES[name][1], results[name]
    (attempt,) = message["attempts"]
    assert (attempt["status"], attempt["error"]) == expected, attempt
    assert message["state"] == expected.state
    assert attempt["fault"] == (None if expected.state == "delivered" else "host")
    assert attempt["address"] == message["host"]
    if expected.state != "delivered":
        assert attempt["detail"]


def test_only_the_first_bytes_of_an_answer_are_kept_and_nothing_is_decompressed(results: dict[str, Any]) -> None:
    assert results["10 GB, bad"]["attempts"][0]["answer"] == "x" * 1024
    assert results["endless chunks, bad"]["attempts"][0]["answer"] == "x" * 1024
    assert results["a gzip bomb"]["attempts"][0]["answer"] == BOMB[:1024].decode("utf-8", "replace")


def test_memory_stays_flat(results: dict[str, Any], measured: Callable[[str], None]) -> None:
    measured(f"{len(MODES)} hostile receivers at once: the peak grew by {results['growth']} kB")
    assert results["growth"] < MOST_MEMORY


def test_deliveries_continue_after_bad_answers(gateway: Gateway, results: dict[str, Any], receiver: Receiver) -> None:
    id = gateway.post(f"{receiver.url}/after", b"whole").json()["id"]
    assert receiver.wait_for_one().body == b"whole"
    assert until(lambda: gateway.message(id)["state"] == "delivered")
    assert not [event for event in gateway.events() if event["level"] in ("error", "critical")]


@pytest.mark.parametrize("fields", ODD_FRAMING.values(), ids=ODD_FRAMING)
def test_a_success_with_odd_framing_is_not_sent_again(tmp_path: Path, fields: tuple[str, ...]) -> None:
    """Retries are due at once: the message after it would come after them."""
    paths: list[bytes] = []

    def script(caller: Caller) -> None:
        request = caller.request()[0]
        paths.append(request.split(b" ")[1])
        is_odd = paths[-1] == b"/odd"
        caller.say(head(200, *(fields if is_odd else ("content-length: 2",))) + b"xx")
        caller.hang()

    with running(tmp_path / "store", retry__base="1ms") as gateway, raw_receiver(script) as receiver:
        id = gateway.post(f"{receiver.url}/odd").json()["id"]
        assert until(lambda: gateway.message(id)["state"] == "delivered")
        ended(gateway, gateway.post(f"{receiver.url}/after").json()["id"])
    assert paths == [b"/odd", b"/after"]


@pytest.mark.parametrize("size", [2, 8 << 20], ids=["sent whole", "still being sent"])
def test_a_complete_head_is_recorded_at_shutdown_though_its_body_is_not(tmp_path: Path, size: int) -> None:
    ids: list[bytes] = []
    dripping_now = threading.Event()

    def script(caller: Caller) -> None:
        while request := caller.head():
            ids.append(re.findall(rb"webhook-id: (\S+)", request)[0])
            if request.startswith(b"POST /slow"):
                caller.say(head(200, "content-length: 100000"))
                dripping_now.set()
                caller.drip(b"", b"x")
            caller.say(head(204))

    limits = {"delivery__timeout": "10m", "drain__timeout": "0s", "ingest__max_body": "8MiB", "retry__base": "1ms"}
    limits |= {"delivery__per_host": 1}
    with raw_receiver(script) as receiver:
        with running(tmp_path / "store", **limits) as gateway:
            slow = gateway.post(f"{receiver.url}/slow", bytes(size)).json()["id"]
            waiting = [gateway.post(f"{receiver.url}/{number}", b"").json()["id"] for number in range(3)]
            assert dripping_now.wait(PATIENCE)
            until(lambda: delivered_bytes(receiver.port))
            assert gateway.stop() == 0
        with running(tmp_path / "store", **limits) as gateway:
            for id in (slow, *waiting):
                assert until(lambda id=id: gateway.message(id)["state"] == "delivered")
                assert len(gateway.message(id)["attempts"]) == 1, "nothing was begun while it ended"
    assert ids == [id.encode() for id in (slow, *waiting)]


def delivered_bytes(port: int) -> bool:
    """Whether the gateway has read all that came from a receiver: nothing waits in the queue of its end."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    queued = [row[4] for row in rows if int(row[2].rpartition(":")[2], 16) == port]
    return bool(queued) and all(int(queue.rpartition(":")[2], 16) == 0 for queue in queued)


@pytest.mark.parametrize("stray", [b"x", head(500, "content-length: 0"), b"\r\n", FLOOD])
def test_bytes_after_an_answer_never_answer_the_next_message(gateway: Gateway, stray: bytes) -> None:
    def script(caller: Caller) -> None:
        caller.request()
        caller.say(head(200, "content-length: 2") + b"ok" + stray)
        caller.hang()

    with raw_receiver(script) as receiver:
        for expected in (1, 2, 3):
            message = ended(gateway, gateway.post(f"{receiver.url}/{expected}").json()["id"])
            assert message["state"] == "delivered"
            assert receiver.connections == expected


def test_a_redirect_is_not_followed_and_no_cookie_comes_back(gateway: Gateway, receiver: Receiver) -> None:
    heads: list[bytes] = []

    def script(caller: Caller) -> None:
        while request := caller.request()[0]:
            heads.append(request)
            fields = (f"location: {receiver.url}/caught", "set-cookie: a=b", "content-length: 0")
            caller.say(head(307, *fields))

    with raw_receiver(script) as redirecting:
        for number in (1, 2):
            message = ended(gateway, gateway.post(f"{redirecting.url}/{number}").json()["id"])
            assert message["attempts"][0]["status"] == 307
    assert len(heads) == 2
    assert not any(b"cookie" in each.lower() for each in heads)
    assert not receiver.requests
