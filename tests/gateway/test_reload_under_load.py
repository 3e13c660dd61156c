"""Thirty reloads, valid and invalid, while clients post on kept connections: no request fails, no webhook is lost or
sent twice.
"""

import http.client
import itertools
import signal
import threading
from collections import Counter
from pathlib import Path

from tests.support.harness import PATIENCE, Gateway, Received, Receiver, running, until

CLIENTS = 4
RELOADS = 30
BETWEEN = 12
"""Webhooks that are acknowledged between two reloads, at least."""

SECRETS = ("whsec_" + "QUFB" * 10, "whsec_" + "QkJC" * 10)

GOOD = (
    "[delivery]\nper_host = 4\nfirst_attempts = 8\n",
    "[delivery]\nper_host = 16\nuser_agent = 'other'\n[routes.more]\nurl = 'URL/more'\n",
    "[circuit]\nmin_attempts = 7\nprobe_every = '1s'\n[retry]\nbase = '1s'\n[egress]\nallow = ['10.0.0.0/8']\n",
    "[ingest]\nmax_body = '2MiB'\nmax_connections = 64\nidle_timeout = '60s'\n[log]\nlevel = 'debug'\n",
)
BAD = (
    "[routes.live\n",
    "[retry]\nbase = 'soon'\n",
    "[routes.live]\nurl = 'URL/live'\nsign = { secret_file = '/nowhere' }\n",
)


class Client(threading.Thread):
    """One connection, kept to the end: whatever is not an acknowledgement on it is a failure."""

    def __init__(self, gateway: Gateway, url: str, acknowledged: list[str], stop: threading.Event) -> None:
        super().__init__()
        self._targets = itertools.cycle(["/to/live/x", f"/{url}/prefix"])
        self._connection = http.client.HTTPConnection(gateway.ingest, timeout=PATIENCE)
        self._acknowledged = acknowledged
        self._stop_asked = stop
        self.failures: list[str] = []

    def run(self) -> None:
        self._connection.connect()
        kept = self._connection.sock
        try:
            while not self._stop_asked.is_set():
                self._connection.request("POST", next(self._targets), b"{}")
                answer = self._connection.getresponse()
                answer.read()
                if answer.status != 202 or self._connection.sock is not kept:
                    self.failures.append(f"{answer.status}, kept: {self._connection.sock is kept}")
                    return
                self._acknowledged.append(answer.headers["holdfast-message-id"])
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
        finally:
            self._connection.close()


def test_thirty_reloads_under_load(tmp_path: Path, receiver: Receiver) -> None:
    file, secret = tmp_path / "holdfast.toml", tmp_path / "secret"
    live = f"[routes.live]\nurl = '{receiver.url}/live'\nsign = {{ secret_file = '{secret}' }}\n"
    secret.write_text(SECRETS[0])
    file.write_text(live)
    acknowledged: list[str] = []
    stop = threading.Event()
    with running(tmp_path / "store", config=file) as gateway:
        clients = [Client(gateway, receiver.url, acknowledged, stop) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            for number in range(RELOADS):
                is_good = number % 3 != 2
                text = live + GOOD[number % len(GOOD)] if is_good else BAD[number // 3 % len(BAD)]
                replace(secret, "\n".join(SECRETS if number % 2 else SECRETS[:1]))
                file.write_text(text.replace("URL", receiver.url))
                reload(gateway, is_good, by_signal=number % 5 == 4)
                target = len(acknowledged) + BETWEEN
                until(lambda target=target: len(acknowledged) >= target or any(client.failures for client in clients))
        finally:
            stop.set()
            for client in clients:
                client.join(PATIENCE)
        assert [client.failures for client in clients] == [[]] * CLIENTS
        assert gateway.stop() == 0
        assert gateway.events()[-1]["waiting"] == 0
    check_each_came_once(receiver.requests, acknowledged)


def replace(file: Path, text: str) -> None:
    """At once: every attempt looks at a secret, and half of one is none."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.rename(file)


def reload(gateway: Gateway, is_good: bool, *, by_signal: bool) -> None:
    if not by_signal:
        assert gateway.call("POST", "/v1/reload").status_code == (200 if is_good else 422)
        return
    name = "reloaded" if is_good else "reload_refused"
    before = count(gateway, name)
    gateway.process.send_signal(signal.SIGHUP)
    until(lambda: count(gateway, name) == before + 1)


def count(gateway: Gateway, name: str) -> int:
    return sum(event["event"] == name for event in gateway.events())


def check_each_came_once(requests: list[Received], acknowledged: list[str]) -> None:
    assert len(acknowledged) >= RELOADS * BETWEEN
    assert Counter(request.id for request in requests) == Counter(acknowledged)
    assert all(("webhook-signature" in request.headers) == (request.path == "/live/x") for request in requests)
