"""Hostile clients: they are refused as SPEC's table says, nothing is stored, and other clients are served meanwhile."""

import random
import re
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import trio

from holdfast.cli.health import health
from holdfast.http.exceptions import problem_for_status
from holdfast.http.server import LOCAL_LIMITS
from holdfast.process.descriptors import OPERATORS, OWN
from tests.gateway.hostile import Memory, accepted, anonymous, raw_client, refusals, rest, say, statuses
from tests.support import fork_server
from tests.support.harness import HOLDFAST, PATIENCE, PLAIN, Gateway, Receiver, running, until
from tests.support.repetitions import amount, cases

MOST_MEMORY = 24 * 1024
"""In kB; the floods below are many times as large."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[Gateway]:
    with fork_server.executing(), running(tmp_path_factory.mktemp("hostile") / "store") as gateway:
        yield gateway


def request(
    gateway: Gateway,
    *fields: str,
    body: bytes = b"",
    line: str = "POST {} HTTP/1.1",
    target: str = "/http://127.0.0.1:9/",
) -> bytes:
    """A request that would be stored as it is: all that is wrong with it is what the test adds."""
    lines = [line.format(target), f"Host: {gateway.ingest}", "Holdfast-Delay: 1h", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def valid(gateway: Gateway, *fields: str) -> bytes:
    return request(gateway, "Content-Length: 2", *fields, body=b"{}")


CHUNKED, LENGTH_5 = "Transfer-Encoding: chunked", "Content-Length: 5"
EMPTY_CHUNKS = b"0\r\n\r\n"
FRAMING: dict[str, tuple[int, Callable[[Gateway], bytes]]] = {
    "length and coding": (400, lambda it: request(it, LENGTH_5, CHUNKED, body=EMPTY_CHUNKS)),
    "coding and length": (400, lambda it: request(it, CHUNKED, LENGTH_5, body=EMPTY_CHUNKS)),
    "two lengths": (400, lambda it: request(it, LENGTH_5, LENGTH_5, body=b"hello")),
    "differing lengths": (400, lambda it: request(it, LENGTH_5, "Content-Length: 0", body=b"hello")),
    "a list of lengths": (400, lambda it: request(it, "Content-Length: 5, 5", body=b"hello")),
    "a negative length": (400, lambda it: request(it, "Content-Length: -5", body=b"hello")),
    "+5": (400, lambda it: request(it, "Content-Length: +5", body=b"hello")),
    "0x5": (400, lambda it: request(it, "Content-Length: 0x5", body=b"hello")),
    "chunked, identity": (400, lambda it: request(it, CHUNKED + ", identity", body=EMPTY_CHUNKS)),
    "chunked twice": (400, lambda it: request(it, CHUNKED, CHUNKED, body=EMPTY_CHUNKS)),
    "gzip, chunked": (400, lambda it: request(it, "Transfer-Encoding: gzip, chunked", body=EMPTY_CHUNKS)),
    "identity": (501, lambda it: request(it, "Transfer-Encoding: identity")),
    "chunked on 1.0": (400, lambda it: request(it, CHUNKED, line="POST {} HTTP/1.0", body=EMPTY_CHUNKS)),
    "a coding with a vertical tab": (400, lambda it: request(it, "Transfer-Encoding: \x0bchunked", body=EMPTY_CHUNKS)),
    "space before the colon": (400, lambda it: request(it, "Transfer-Encoding : chunked", body=EMPTY_CHUNKS)),
    "a folded header": (400, lambda it: request(it, "X: y", " Content-Length: 0")),
    "a folded coding": (400, lambda it: request(it, "Transfer-Encoding:", " chunked", body=EMPTY_CHUNKS)),
    "bare LF": (400, lambda it: valid(it).replace(b"\r\n", b"\n")),
    "one bare LF": (400, lambda it: valid(it, "X: y\nContent-Length: 0")),
    "bare CR": (400, lambda it: valid(it, "X: y\rContent-Length: 0")),
    "NUL in a value": (400, lambda it: valid(it, "X: a\0b")),
    "NUL in a name": (400, lambda it: valid(it, "X\0: b")),
    "brackets in a name": (400, lambda it: valid(it, "X(y): b")),
    "a name of high bytes": (400, lambda it: valid(it, "\xe9: b")),
    "no colon": (400, lambda it: valid(it, "Content-Length")),
    "two Hosts": (400, lambda it: valid(it, "Host: evil.test")),
    "no Host": (400, lambda it: valid(it).replace(b"Host:", b"Hos:")),
    "a tab in the line": (400, lambda it: valid(it).replace(b"POST /", b"POST\t/")),
    "two spaces in the line": (400, lambda it: valid(it).replace(b"POST /", b"POST  /")),
    "a space in the URL": (400, lambda it: valid(it).replace(b"9/ HTTP", b"9/ a HTTP")),
    "a lower-case method": (405, lambda it: valid(it).replace(b"POST", b"post")),
    "a very long method": (405, lambda it: valid(it).replace(b"POST", b"P" * 5000)),
    "an endless method": (414, lambda it: valid(it).replace(b"POST", b"P" * 50_000)),
    "HTTP/2": (505, lambda it: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (400, lambda it: b"POST /http://127.0.0.1:9/\r\n\r\n"),
    "TLS": (400, lambda it: bytes.fromhex("16030100c8010000c40303") + bytes(range(190))),
    "a long URL": (414, lambda it: valid(it).replace(b"9/ HTTP", b"9/" + b"x" * 9000 + b" HTTP")),
    "one large header": (431, lambda it: valid(it, "X: " + "y" * 33_000)),
    "many headers": (431, lambda it: valid(it, *["X: y"] * 200)),
    "a large body": (413, lambda it: request(it, "Content-Length: 1048577")),
    "a body of 10 GB": (413, lambda it: request(it, "Content-Length: 10737418240")),
    "a length beyond numbers": (413, lambda it: request(it, "Content-Length: " + "9" * 400)),
}
CHUNKS: dict[str, tuple[int, bytes]] = {
    "a size beyond numbers": (400, b"ffffffffffffffff1\r\nabc\r\n0\r\n\r\n"),
    "a negative size": (400, b"-1\r\nabc\r\n0\r\n\r\n"),
    "+5": (400, b"+5\r\nhello\r\n0\r\n\r\n"),
    "0x5": (400, b"0x5\r\nhello\r\n0\r\n\r\n"),
    "5 and a space": (400, b"5 \r\nhello\r\n0\r\n\r\n"),
    "no size": (400, b"\r\nhello\r\n0\r\n\r\n"),
    "a bare LF after the size": (400, b"5\nhello\r\n0\r\n\r\n"),
    "a bare LF in an extension": (400, b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "a bare CR in an extension": (400, b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "a huge extension": (400, b"5;" + b"x" * 70_000 + b"\r\nhello\r\n0\r\n\r\n"),
    "many extensions": (400, (b"1;" + b"x" * 200 + b"\r\na\r\n") * 30 + b"0\r\n\r\n"),
    "more than its size": (400, b"5\r\nhello!\r\n0\r\n\r\n"),
    "less than its size": (400, b"7\r\nhello\r\n0\r\n\r\n" + b" " * 7),
    "a bad trailer": (400, b"5\r\nhello\r\n0\r\nX y\r\n\r\n"),
    "endless trailers": (400, b"5\r\nhello\r\n0\r\n" + b"X: y\r\n" * 3000),
    "too much in all": (413, (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 17),
}
SMUGGLING = FRAMING | {
    f"chunks: {name}": (status, lambda it, body=body: request(it, CHUNKED, body=body))
    for name, (status, body) in CHUNKS.items()
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_a_malformed_request_is_refused_and_the_bytes_after_it_are_not_read(gateway: Gateway, name: str) -> None:
    """A second, valid request follows each: whoever frames the first one otherwise would act on it."""
    status, make = SMUGGLING[name]
    before = accepted(gateway)
    said = say(gateway.ingest, make(gateway) + valid(gateway))
    assert statuses(said) == [status]
    assert b"connection: close\r\n" in said
    assert b"application/problem+json" in said
    assert accepted(gateway) == before


def test_a_refusal_by_a_rule_is_not_a_framing_error(gateway: Gateway) -> None:
    """So the connection goes on, and the next request on it is served."""
    before = accepted(gateway)
    bad = request(gateway, "Content-Length: 2", body=b"{}", target="/nowhere")
    said = say(gateway.ingest, bad + valid(gateway, "Connection: close"))
    assert statuses(said) == [400, 202]
    assert accepted(gateway) == before + 1


@pytest.mark.parametrize("cut", [1, 20, -1, -3])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_disconnects_early_stores_nothing(gateway: Gateway, cut: int, chunked: bool, reset: bool) -> None:
    before = accepted(gateway)
    whole = request(gateway, CHUNKED, body=b"2\r\n{}\r\n0\r\n\r\n") if chunked else valid(gateway)
    with raw_client(gateway.ingest) as sock:
        sock.sendall(whole[:cut])
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        else:
            sock.shutdown(socket.SHUT_WR)
            assert rest(sock) == b""
    # A later request is served after the gateway saw the end of the one before.
    assert statuses(say(gateway.ingest, valid(gateway, "Connection: close"))) == [202]
    assert accepted(gateway) == before + 1


# -- floods -----------------------------------------------------------------------------------------------------------


def flood(gateway: Gateway, start: bytes, piece: bytes, size: int) -> bytes:
    """Sends without end, as it seems, and listens only then; what was said to it, if the end left any of it."""
    with raw_client(gateway.ingest) as sock:
        with suppress(ConnectionError):
            sock.sendall(start)
            for _ in range(size // len(piece)):
                sock.sendall(piece)
        return rest(sock)


FLOOD = 80 << 20
"""More than is read, and dropped, of what follows a refusal."""
BLOCK = b"x" * (1 << 20)
FLOODS: dict[str, tuple[int, Callable[[Gateway], bytes], bytes]] = {
    "a body of 10 GB": (413, lambda it: request(it, f"Content-Length: {10 << 30}"), BLOCK),
    "endless chunks": (413, lambda it: request(it, CHUNKED), b"100000\r\n" + BLOCK + b"\r\n"),
    "one endless chunk": (413, lambda it: request(it, CHUNKED, body=b"fffffffffffffff\r\n"), BLOCK),
    "an endless header": (431, lambda it: request(it)[:-2] + b"X: ", BLOCK),
    "endless headers": (431, lambda it: request(it)[:-2], b"X: y\r\n" * 170_000),
    "an endless URL": (414, lambda it: b"POST /http://127.0.0.1:9/", BLOCK),
    "an endless chunk size": (400, lambda it: request(it, CHUNKED), b"0" * (1 << 20)),
    "endless trailers": (400, lambda it: request(it, CHUNKED, body=b"0\r\n"), b"X: y\r\n" * 170_000),
    "endless blank lines": (400, lambda it: b"", b"\r\n" * (1 << 19)),
}


def test_floods_are_refused_before_they_are_buffered(gateway: Gateway, measured: Callable[[str], None]) -> None:
    before, refused, memory = accepted(gateway), refusals(gateway), Memory(gateway)
    expected: Counter[str] = Counter()
    for name, (status, start, piece) in FLOODS.items():
        said = flood(gateway, start(gateway), piece, FLOOD)
        assert statuses(said) in ([status], []), name
        expected[problem_for_status(status, "").type.rpartition(":")[2]] += 1
        assert refusals(gateway) - refused == expected, name
    measured(f"{len(FLOODS)} floods of up to 80 MB: the peak grew by {memory.growth} kB")
    assert memory.growth < MOST_MEMORY
    assert accepted(gateway) == before


# -- random bytes -----------------------------------------------------------------------------------------------------

RANDOM_STRINGS = {1: amount(1_500, 10_000), 2: amount(500, 1_000)}
"""The readers of bytes are the same in two processes."""
AT_ONCE = 32
MORSELS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\xff", b"0", b"5", b"-", b"#", b"%", b"//", b"\r\n\r\n", b"@",
    b"Host: evil.test\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"HTTP/1.0", b"0\r\n\r\n", b"POST / HTTP/1.1\r\n", b"Holdfast-Delay: 1h\r\n", b"Expect: 100-continue\r\n",
]  # fmt: skip


def random_string(dice: random.Random, seeds: list[bytes]) -> bytes:
    """Bytes of no meaning, or a request that was damaged in a few places."""
    if dice.random() < 0.3:
        return dice.randbytes(dice.randint(1, 200))
    data = dice.choice(seeds)
    for _ in range(dice.randint(1, 4)):
        place, size = dice.randint(0, len(data)), dice.choice([0, 0, 1, 3, 20])
        morsel = dice.choice([b"", dice.choice(MORSELS), dice.randbytes(dice.randint(1, 3))])
        data = data[:place] + morsel + data[place + size :]
    return data


def test_random_bytes_never_crash_the_gateway_and_only_acknowledged_messages_are_stored(
    gateway: Gateway, processes: int, measured: Callable[[str], None]
) -> None:
    dice, count = random.Random(4), RANDOM_STRINGS[processes]
    seeds = [
        valid(gateway),
        valid(gateway, "Idempotency-Key: k", "webhook-id: w"),
        request(gateway, CHUNKED, body=b"2;x=y\r\n{}\r\n0\r\nX: y\r\n\r\n"),
        request(gateway, "Content-Length: 2", "Holdfast-Target: http://127.0.0.1:9/x", body=b"{}", target="/"),
        request(gateway, "Content-Length: 2", body=b"{}", target="http://127.0.0.1:9/proxied"),
    ]
    before, memory = accepted(gateway), Memory(gateway)
    acknowledged = refused = 0
    for _ in range(count // AT_ONCE + 1):
        with ExitStack() as stack:
            clients = [stack.enter_context(raw_client(gateway.ingest)) for _ in range(AT_ONCE)]
            for sock in clients:
                with suppress(ConnectionError):
                    sock.sendall(random_string(dice, seeds))
                    sock.shutdown(socket.SHUT_WR)
            for sock in clients:
                answers = rest(sock)
                said = statuses(answers)
                acknowledged += said.count(202) - answers.count(b"holdfast-duplicate: true")
                refused += len(said) - said.count(202)
                assert 500 not in said
    measured(f"{count} random strings: {acknowledged} stored, {refused} refused, {memory.growth} kB more")
    assert accepted(gateway) == before + acknowledged
    assert acknowledged and refused
    assert gateway.process.poll() is None
    assert not [event for event in gateway.events() if event["level"] in ("error", "critical")]


# -- crowds -----------------------------------------------------------------------------------------------------------

mostly_split = pytest.mark.parametrize("processes", cases([2], [1]), indirect=True)
"""For crowds that cost seconds of CPU: with one process only in the long run."""

SLOW_HEADS = SLOW_BODIES = 500
POSTS = 50


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 65536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_at_ingest(gateway: Gateway) -> int:
    found = re.search(r'connections_open\{listener="ingest"\} (\d+)', gateway.get("/metrics").text)
    assert found is not None
    return int(found[1])


async def slow_client(address: str, begun: list[bytes], said: list[int], start: bytes, then: bytes) -> None:
    """Sends a little at a time, each within any timeout, until it is told off."""
    host, _, port = address.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(start)
        begun.append(start)

        async def drip() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await trio.sleep(1)
                    await stream.send_all(then)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            answer = b""
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    answer += data
            said += statuses(answer)
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("many_descriptors", "executed")
async def test_a_thousand_slow_clients_delay_no_other(
    tmp_path: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    begun: list[bytes] = []
    said: list[int] = []
    limits = {"ingest__head_timeout": "15s", "ingest__body_timeout": "7s", "ingest__max_connections": 1100}
    with running(tmp_path / "store", **limits) as gateway:
        memory = Memory(gateway)
        head = request(gateway)[:-2]
        body = request(gateway, "Content-Length: 1000000")
        with trio.fail_after(2 * PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(SLOW_HEADS):
                    nursery.start_soon(slow_client, gateway.ingest, begun, said, head, b"X: y\r\n")
                for _ in range(SLOW_BODIES):
                    nursery.start_soon(slow_client, gateway.ingest, begun, said, body, b"x")
                while len(begun) < SLOW_HEADS + SLOW_BODIES:
                    await trio.sleep(0.01)
                async with httpx.AsyncClient(**PLAIN) as client:
                    for number in range(POSTS):
                        answer = await client.post(f"http://{gateway.ingest}/{receiver.url}/{number}", content=b"{}")
                        assert answer.status_code == 202
                    told_off = len(said)
                    assert told_off < SLOW_HEADS + SLOW_BODIES
                    assert (await client.get(f"http://{gateway.status}/readyz")).status_code == 200
                assert gateway.call("GET", "/v1/status").status_code == 200
        counted = Counter(said)
        assert set(counted) == {408, 503}, "a slow body keeps its room from others, which are told so"
        assert counted.total() == SLOW_HEADS + SLOW_BODIES
        assert counted[408] > SLOW_HEADS
        receiver.wait_for(lambda requests: len(requests) == POSTS)
        assert accepted(gateway) == POSTS
        measured(
            f"1,000 slow clients: {POSTS} webhooks served meanwhile ({told_off} had been told off by then), "
            f"{memory.growth} kB more"
        )


UPLOADS = 176
UPLOAD = 1 << 20
MOST_ANONYMOUS = 160 * 1024
"""In kB, of each process: a pod of 256 MiB has room for that and for what the kernel counts besides."""


async def upload(gateway: Gateway, chunked: bool, finish: trio.Event, said: list[bytes]) -> None:
    """All but the last byte, as far as it is taken, and then the rest."""
    start = request(gateway, CHUNKED, body=b"100000\r\n") if chunked else request(gateway, f"Content-Length: {UPLOAD}")
    last = b"x\r\n0\r\n\r\n" if chunked else b"x"
    host, _, port = gateway.ingest.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(start + bytes(UPLOAD - 1))
            await finish.wait()
            await stream.send_all(last)
        said.append(bytes(await stream.receive_some()))


@mostly_split
@pytest.mark.usefixtures("many_descriptors", "processes")
async def test_unfinished_uploads_take_bounded_memory_and_delay_no_small_webhook(
    tmp_path: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    """Half of them say how large they will be, half come in chunks."""
    said: list[bytes] = []
    finish = trio.Event()
    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, anonymous(gateway))
            await trio.sleep(0.01)

    with running(tmp_path / "store") as gateway:
        with trio.fail_after(2 * PATIENCE):
            async with trio.open_nursery() as watching:
                async with trio.open_nursery() as clients:
                    for number in range(UPLOADS):
                        clients.start_soon(upload, gateway, number % 2 == 0, finish, said)
                    await trio.testing.wait_all_tasks_blocked(0.3)
                    stalled = anonymous(gateway)
                    watching.start_soon(watch)
                    async with httpx.AsyncClient(**PLAIN) as client:
                        for number in range(20):
                            url = f"http://{gateway.ingest}/{receiver.url}/{number}"
                            assert (await client.post(url, content=b"{}")).status_code == 202
                    assert not said
                    finish.set()
                watching.cancel_scope.cancel()
        measured(f"{UPLOADS} uploads of 1 MiB: RssAnon {stalled} kB unfinished, at most {peak} kB until all are done")
        assert max(stalled, peak) < MOST_ANONYMOUS
        assert len(said) == UPLOADS
        refused = [answer for answer in said if statuses(answer) != [202]]
        assert all(statuses(answer) == [503] and b"retry-after: " in answer for answer in refused)
        assert accepted(gateway) == UPLOADS - len(refused) + 20
        receiver.wait_for(lambda requests: len(requests) == 20)


@pytest.mark.usefixtures("processes")
def test_too_many_concurrent_requests_get_503_and_operators_are_still_served(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Of each connection half a request has come."""
    with running(tmp_path / "store", ingest__max_connections=4) as gateway, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(raw_client(gateway.ingest)).sendall(valid(gateway)[:-1])
        until(lambda: open_at_ingest(gateway) == 4)
        for _ in range(2):
            said = say(gateway.ingest, valid(gateway))
            assert statuses(said) == [503]
            assert b"retry-after: 1\r\n" in said
        assert gateway.get("/readyz").status_code == 200
        assert gateway.call("GET", "/v1/status").json()["totals"]["refused"] == {"service-unavailable": 2}
        assert accepted(gateway) == 0
        stack.close()
        until(lambda: open_at_ingest(gateway) == 0)
        assert gateway.post(f"{receiver.url}/again").status_code == 202


SILENT = 1_250
AT_INGEST = 256
MOST_DESCRIPTORS = OWN + OPERATORS + AT_INGEST


def silent_client(gateway: Gateway, door: str) -> socket.socket:
    """Connected, and says nothing."""
    sock = socket.socket(socket.AF_UNIX if door == "control" else socket.AF_INET)
    sock.settimeout(PATIENCE)
    if door == "control":
        until(lambda: sock.connect_ex(str(gateway.control)) == 0)
    else:
        host, _, port = address(gateway, door).rpartition(":")
        sock.connect((host, int(port)))
    return sock


def address(gateway: Gateway, door: str) -> str:
    if door == "probe":
        found = re.search(r"probe http://(\S+)", gateway.out[0])
        assert found is not None
        return found[1]
    return {"ingest": gateway.ingest, "status": gateway.status}[door]


def is_answered(gateway: Gateway, door: str) -> bool:
    """By a client that comes now."""
    if door == "control":
        return gateway.call("GET", "/v1/status").status_code == 200
    if door == "ingest":
        return gateway.post("http://127.0.0.1:9/", holdfast_delay="1h").status_code == 202
    return httpx.get(f"http://{address(gateway, door)}/healthz", **PLAIN).status_code == 200


DOORS = ("probe", "status", "control", "ingest")


@mostly_split
@pytest.mark.usefixtures("many_descriptors", "processes")
def test_silent_connections_do_not_block_any_listener(tmp_path: Path, measured: Callable[[str], None]) -> None:
    most = 0
    keys = {"listen__probe": "127.0.0.1:0", "ingest__max_connections": AT_INGEST}
    with running(tmp_path / "store", **keys) as gateway:
        memory = Memory(gateway)
        for door in DOORS:
            with ExitStack() as stack:
                for number in range(SILENT):
                    stack.enter_context(silent_client(gateway, door))
                    if number % 25 == 0:
                        assert is_answered(gateway, door), number
                        most = max(most, *(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in gateway.pids))
                assert health(["--status", gateway.status]) == 0
        told = [event for event in gateway.events() if "wait longest for their peer" in event.get("message", "")]
        measured(
            f"{SILENT} silent connections at each of {', '.join(DOORS)}: everybody else is answered; at most {most} "
            f"descriptors, {memory.growth} kB more, {len(told)} lines in the log"
        )
        assert len(DOORS) <= len(told) < 5 * len(DOORS)
        assert most <= MOST_DESCRIPTORS


RESTARTED_AFTER = 3
"""Probes in a row that fail, by the manifests in deploy/."""


@mostly_split
@pytest.mark.usefixtures("processes")
def test_clients_that_do_not_read_answers_block_no_other(tmp_path: Path) -> None:
    """Each client asks for more than is sent to one that does not read. While the first answers are made, all of them
    have a request in hand: whoever comes may be refused then, but not as often in a row as a kubelet restarts after.
    """
    with running(tmp_path / "store", listen__probe="127.0.0.1:0") as gateway:
        for door in ("probe", "status"):
            host, _, port = address(gateway, door).rpartition(":")
            with ExitStack() as stack:
                for _ in range(LOCAL_LIMITS.max_connections):
                    sock = stack.enter_context(socket.socket())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    sock.connect((host, int(port)))
                    sock.setblocking(False)
                    sock.send(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * 400)
                refused = 0
                for number in range(50):
                    refused = 0 if is_answered(gateway, door) else refused + 1
                    assert refused < RESTARTED_AFTER, (door, number)


def test_a_silent_connection_to_an_operators_listener_is_closed_soon(tmp_path: Path) -> None:
    with running(tmp_path / "store", listen__probe="127.0.0.1:0") as gateway, ExitStack() as stack:
        silent = [stack.enter_context(silent_client(gateway, door)) for door in ("probe", "status", "control")]
        assert [rest(sock) for sock in silent] == [b"", b"", b""]


@pytest.mark.parametrize("path", ["/healthz", "/status"])
def test_status_and_probe_listeners_refuse_bodies(gateway: Gateway, path: str) -> None:
    """Before it came: an unfinished one would keep a place from a probe."""
    for field in ("Content-Length: 5", CHUNKED):
        said = say(gateway.status, f"GET {path} HTTP/1.1\r\nHost: {gateway.status}\r\n{field}\r\n\r\n".encode())
        assert statuses(said) == [413]


# -- descriptors ------------------------------------------------------------------------------------------------------


def with_limit(tmp_path: Path, limits: str) -> AbstractContextManager[None]:
    """Gateways started from here on have these limits on descriptors."""
    script = tmp_path / "limited"
    script.write_text(f'#!/bin/sh\n{limits}\nexec "{HOLDFAST}" "$@"\n')
    script.chmod(0o700)
    return fork_server.executing(str(script))


def descriptors(gateway: Gateway) -> tuple[int, int]:
    return resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)


def test_a_low_soft_limit_is_raised(tmp_path: Path) -> None:
    with with_limit(tmp_path, "ulimit -Sn 256; ulimit -Hn 8192"), running(tmp_path / "store") as gateway:
        assert descriptors(gateway) == (8192, 8192)
        assert "few_descriptors" not in [event["event"] for event in gateway.events()]


@pytest.mark.usefixtures("many_descriptors")
def test_with_few_descriptors_clients_get_fewer_and_operators_keep_theirs(tmp_path: Path, receiver: Receiver) -> None:
    with with_limit(tmp_path, "ulimit -n 1024"), running(tmp_path / "store") as gateway, ExitStack() as stack:
        (warning,) = [event for event in gateway.events() if event["event"] == "few_descriptors"]
        room = warning["max_connections"]
        assert 16 < room < 1024
        for _ in range(1024):
            stack.enter_context(raw_client(gateway.ingest))
        until(lambda: open_at_ingest(gateway) == room)
        assert gateway.call("GET", "/v1/status").status_code == 200
        assert statuses(say(gateway.ingest, valid(gateway, "Connection: close"))) == [202]
        stack.close()
        until(lambda: open_at_ingest(gateway) == 0)
        assert gateway.post(f"{receiver.url}/again").status_code == 202
        receiver.wait_for_one()
        assert "could not accept" not in gateway.log.read_text()
