"""A real gateway beside hundreds of receivers that accept connections and never answer."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.hostile import anonymous
from tests.support.harness import Gateway, Receiver, running, until
from tests.support.repetitions import amount

HANGING = amount(200, 1_500)
MOST_MEMORY = 160 * 1024
"""Kilobytes."""
LARGE = b"x" * 1_000_000


@pytest.fixture
def hanging() -> Iterator[list[str]]:
    """URLs of receivers on addresses of their own. The kernel takes what is sent to them, nobody reads it."""
    with ExitStack() as stack:
        urls = []
        for number in range(HANGING):
            listener = stack.enter_context(socket.socket())
            listener.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
            listener.listen(8)
            urls.append("http://{}:{}/hangs".format(*listener.getsockname()))
        yield urls


def check(gateway: Gateway, receiver: Receiver) -> None:
    """Ten messages reach a host that answers before any attempt to another one has ended."""
    before = len(receiver.requests)
    for number in range(10):
        gateway.post(f"{receiver.url}/{number}", LARGE)
    receiver.wait_for(lambda requests: len(requests) == before + 10)
    errors = {event["error"] for event in gateway.events() if event["event"] == "attempt_failed"}
    assert errors <= {"interrupted"}, "only the stop before this run has ended some"
    assert anonymous(gateway) < MOST_MEMORY


@pytest.mark.usefixtures("executed")
def test_hanging_hosts_with_a_megabyte_each_cost_neither_memory_nor_another_hosts_time(
    tmp_path: Path, hanging: list[str], receiver: Receiver
) -> None:
    rules = {"store__max_size": "4GiB", "delivery__timeout": "10m", "drain__timeout": "1s"}
    with running(tmp_path / "store", **rules) as gateway:
        gateway.post(f"{receiver.url}/answers")
        receiver.wait_for_one()
        for url in hanging:
            assert gateway.post(url, LARGE).status_code == 202
        until(lambda: gateway.get("/status").json()["in_flight"] >= 10)
        check(gateway, receiver)
        assert gateway.stop() == 0
    with running(tmp_path / "store", **rules) as gateway:
        until(lambda: gateway.get("/status").json()["in_flight"] >= 10)
        check(gateway, receiver)
        gateway.kill()
