"""An HTTP server that plays scripted answers, on a Unix socket or a TCP port, and documents for it.

The documents have the shapes of the control API.
"""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

Document = dict[str, Any]


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)


class Received(NamedTuple):
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes


def documents(*each: Document) -> list[Answer]:
    return [Answer(200, json.dumps(document).encode()) for document in each]


def problem(status: int, detail: str, **extra: object) -> list[Answer]:
    body = {**extra, "type": "urn:holdfast:problem:x", "title": "X", "status": status, "detail": detail}
    return [Answer(status, json.dumps(body).encode(), (("Content-Type", "application/problem+json"),))]


class Script:
    """Answers by "METHOD path?query", else by "METHOD path".

    The last answer of a path is repeated; a path with an empty list gets no answer.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.answers: dict[str, list[Answer]] = {}
        self.received: list[Received] = []
        self.asked = threading.Event()
        self.released = threading.Event()
        self.before_answer: Callable[[Received], None] = lambda received: None

    def paths(self) -> list[str]:
        return [f"{each.method} {each.path}" for each in self.received]

    def answer(self, received: Received) -> Answer:
        self.received.append(received)
        call = f"{received.method} {received.path}"
        answers = self.answers.get(call, self.answers.get(call.partition("?")[0]))
        self.asked.set()
        self.before_answer(received)
        if answers is None:
            return Answer(500, f"not in the script: {received.method} {received.path}".encode(), ())
        if not answers:
            self.released.wait(30)
            return Answer(500)
        return answers.pop(0) if len(answers) > 1 else answers[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def _play(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.script.answer(Received(self.command, self.path, self.headers.items(), body))
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _play

    def log_message(self, *arguments: object) -> None:
        pass


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Some tests close their connection early."""


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@contextmanager
def unix_script(path: Path) -> Iterator[Script]:
    script = Script(str(path))
    with _UnixServer(str(path), type("Handler", (_Handler,), {"script": script})) as server:
        yield from _serving(server, script)


@contextmanager
def tcp_script() -> Iterator[Script]:
    script = Script("")
    with _TcpServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"script": script})) as server:
        script.where = f"127.0.0.1:{server.server_address[1]}"
        yield from _serving(server, script)


def _serving(server: socketserver.BaseServer, script: Script) -> Iterator[Script]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        script.released.set()
        server.shutdown()
        thread.join()


def circuit(**changes: object) -> Document:
    return {
        "host": "hooks.example.com:443",
        "state": "enabled",
        "since": "2026-01-01T09:00:00.000Z",
        "reason": None,
        "consecutive_failures": 0,
        "window": {"attempts": 340, "failures": 12},
        "last_success_at": "2026-01-01T11:59:50.000Z",
        "first_attempt_at": "2025-12-20T12:00:00.000Z",
        "waiting": 0,
        "dead": 0,
        "next_probe_at": None,
        "limit": 16,
        **changes,
    }


def attempt(**changes: object) -> Document:
    return {
        "number": 1,
        "kind": "first",
        "at": "2026-01-01T09:00:00.000Z",
        "duration": 30.0,
        "address": "203.0.113.7:443",
        "status": None,
        "error": "timeout",
        "detail": "no answer within 30 s",
        "fault": "host",
        "answer": None,
        **changes,
    }


def message(number: int = 1, **changes: object) -> Document:
    return {
        "id": f"msg_{number:032x}",
        "state": "retrying",
        "target": "https://hooks.example.com/in/7?x=1",
        "host": "hooks.example.com:443",
        "route": None,
        "method": "POST",
        "size": 1_234,
        "accepted_at": "2026-01-01T08:59:30.000Z",
        "retry": 1,
        "next_attempt_at": "2026-01-01T12:04:14.000Z",
        "dead_reason": None,
        "finished_at": None,
        "attempts": [],
        **changes,
    }


def status(**changes: object) -> Document:
    return {
        "version": "0.1.0",
        "pid": 4242,
        "started_at": "2026-01-01T09:00:00.000Z",
        "ready": True,
        "degraded": [],
        "draining": False,
        "store": {
            "path": "/var/lib/holdfast",
            "used_bytes": 1_288_490_189,
            "max_bytes": 4 << 30,
            "waiting": 1_204,
            "dead": 17,
        },
        "queues": {"first": 1_000, "retry": 204},
        "in_flight": 12,
        "oldest_waiting_at": "2026-01-01T10:00:00.000Z",
        "next_due_at": "2026-01-01T12:04:14.000Z",
        "earliest_expiry_at": "2026-01-03T04:00:00.000Z",
        "circuits": {"enabled": 14, "disabled": 1, "frozen": 0},
        "totals": {
            "accepted": 10_200,
            "refused": {"store-full": 3},
            "delivered": 9_000,
            "failed_attempts": 512,
            "dead": {"expired": 2},
            "trips": {},
        },
        **changes,
    }
