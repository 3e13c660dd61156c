"""Real processes for tests: a gateway on free ports with its own store, and a receiver that records its requests."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.support import fork_server

HOLDFAST = fork_server.HOLDFAST
PATIENCE = 30.0
"""Seconds to wait for a condition before a test fails. Tests wait for conditions, never for time alone."""

PLAIN: dict[str, Any] = {"trust_env": False, "timeout": PATIENCE, "verify": False}
"""Options of httpx for plain HTTP. Without verify=False each call reads the system's certificates: 30 ms of CPU."""

ALSO: dict[str, object] = {}
"""Settings of every gateway, unless the test overrides them."""

READY = re.compile(r"ready: (?:ingest http://(\S+), )?status http://(\S+), control (\S+), store (\S+)")
"""A replica without an ingest listener prints no ingest address."""


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int = 0
    """The status that the receiver answered."""
    client: str | None = None
    """The name in the client certificate."""

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """An HTTP server on loopback that records its requests. `answer` returns the status, 200 by default."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Received] = []
        self.answer: Callable[[Received], int] = lambda request: 200
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def receive(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Received(self.command, self.path, headers, body, client=_shown_by(self.connection))
                status = receiver.answer(request)
                receiver.remember(replace(request, status=status))
                with suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.end_headers()

            do_POST = do_PUT = do_PATCH = do_DELETE = receive

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A gateway that was killed leaves broken connections behind."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            # The handshake then happens in the connection's own thread, at its first read.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def remember(self, request: Received) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[list[Received]], bool], patience: float = PATIENCE) -> list[Received]:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.requests), patience), (
                f"not met; {len(self.requests)} requests came"
            )
            return list(self.requests)

    def wait_for_one(self) -> Received:
        return self.wait_for(lambda requests: len(requests) >= 1)[0]

    def hang(self) -> tuple[threading.Event, threading.Event]:
        """Requests hang. Returns an event that the first request sets, and an event that releases all of them."""
        entered, let_go = threading.Event(), threading.Event()

        def hanging(request: Received) -> int:
            entered.set()
            let_go.wait(PATIENCE)
            return 200

        self.answer = hanging
        return entered, let_go

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _shown_by(connection: socket.socket) -> str | None:
    certificate = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    return str(certificate["subjectAltName"][0][1]) if certificate else None  # type: ignore[index]


@dataclass
class Gateway:
    """A `holdfast run`. `ingest` is empty if it has no ingest listener."""

    process: "subprocess.Popen[str] | fork_server.Forked"
    ingest: str
    status: str
    control: Path
    log: Path
    out: list[str] = field(default_factory=list)

    def post(self, target: str, body: bytes = b"{}", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"http://{self.ingest}/{target}", content=body, headers=named, **PLAIN)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.status}{path}", **PLAIN)

    def call(self, method: str, path: str, document: object = None) -> httpx.Response:
        """Calls the control socket."""
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.control), verify=False), timeout=PATIENCE
        ) as client:
            content = None if document is None else json.dumps(document)
            return client.request(method, f"http://holdfast{path}", content=content)

    def message(self, id: str) -> dict[str, Any]:
        return dict(self.get(f"/messages/{id}").json())

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    @property
    def pids(self) -> list[int]:
        """All of its processes, the one of `holdfast run` first."""
        listings = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [self.process.pid, *(int(pid) for listing in listings for pid in listing.read_text().split())]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


def settings(store: Path, **keys: object) -> dict[str, str]:
    """The environment of a gateway: loopback targets are allowed, ports are free ones. Keys are `section__key`; None
    leaves a key to the config file.
    """
    given: dict[str, object] = {
        "listen__ingest": "127.0.0.1:0",
        "listen__status": "127.0.0.1:0",
        "store__path": str(store),
        "egress__allow_loopback": "true",
        "egress__allow_ports": "*",
        "ingest__proxy_hosts": "*",
        "drain__timeout": "10s",
    }
    given |= ALSO | keys
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return clean | {f"HOLDFAST_{name.upper()}": str(value) for name, value in given.items() if value is not None}


def start(store: Path, config: Path | None = None, *flags: str, **keys: object) -> Gateway:
    """Starts a gateway and waits for its ready line."""
    words = ["run", *(["--config", str(config)] if config is not None else []), *flags]
    log = store.parent / f"{store.name}.log"
    with log.open("a") as stderr:
        process = fork_server.start(words, settings(store, **keys), subprocess.PIPE, stderr)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = READY.search(line)
    if found is None:
        process.kill()
        process.wait(PATIENCE)
        process.stdout.close()
        raise AssertionError(f"no ready line but {line!r}; log: {log.read_text()}")
    return Gateway(process, found[1] or "", found[2], Path(found[3]), log, [line])


@contextmanager
def running(store: Path, config: Path | None = None, *flags: str, **keys: object) -> Iterator[Gateway]:
    gateway = start(store, config, *flags, **keys)
    try:
        yield gateway
    finally:
        gateway.close()


def until(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Polls a condition of another process until it is true, and returns its value."""
    pause, end = 0.01, time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, "the condition was never met"
        time.sleep(pause)
        # A look costs 5 ms of CPU in both processes: less often, the longer it takes.
        pause = min(1.2 * pause, 0.1)
