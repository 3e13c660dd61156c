"""A replacement for getaddrinfo that answers, fails or hangs as a test wants."""

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import trio

from tests.support.harness import PATIENCE

PUBLIC = "93.184.216.34"


class FakeResolver:
    """Gives each host's answers one after the other and repeats the last; errors are raised.

    `inside` counts the look-ups in their threads.
    """

    def __init__(self, **hosts: Sequence[list[str] | Exception]) -> None:
        self.answers = {name.replace("_", "."): list(answers) for name, answers in hosts.items()}
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.inside = 0
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Event()
        self._counting = threading.Lock()

    def __call__(self, host: str, port: None, type: int) -> list[Any]:
        with self._counting:
            self.asked.append(host)
            self.inside += 1
        try:
            self.entered.release()
            if host in self.hanging:
                self.let_go.wait(PATIENCE)
            return self._answer(host, type)
        finally:
            with self._counting:
                self.inside -= 1

    def _answer(self, host: str, type: int) -> list[Any]:
        answers = self.answers.get(host, [[PUBLIC]])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [found for address in answer for found in socket.getaddrinfo(address, None, type=type)]

    async def until_asked(self, times: int = 1) -> None:
        """Wait until this many more look-ups are in their threads."""
        for _ in range(times):
            assert await trio.to_thread.run_sync(self.entered.acquire, True, PATIENCE)

    async def let_all_go(self) -> None:
        """Wait until every look-up has ended. Hanging names hang again after that."""
        self.let_go.set()
        while look_ups_under_way():
            await trio.to_thread.run_sync(time.sleep, 0.001)
        self.let_go = threading.Event()


def look_ups_under_way() -> int:
    """The tasks of look-ups, in a thread or not."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    tasks = [task for nursery in root.child_nurseries for task in nursery.child_tasks]
    return sum(task.name.endswith("Resolver._ask") for task in tasks)
