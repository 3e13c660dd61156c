"""Every test of this folder runs on every engine, except those marked for some."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.contract.builders import RULES, Desk, engine_maker
from tests.contract.shared import SharedDesk

OpenDesk = Callable[..., Awaitable[Desk]]
EMBEDDED = ("lmdb", "memory")


def embedded(reason: str) -> pytest.MarkDecorator:
    """For tests of what only the engines inside of the process have, and why the others do not."""
    assert reason
    return pytest.mark.parametrize("kind", EMBEDDED)


@pytest.fixture(params=[*EMBEDDED, "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_desk(kind: str, tmp_path: Path, nursery: trio.Nursery, request: pytest.FixtureRequest) -> Callable[..., Desk]:
    if kind != "postgres":
        return lambda max_size, rules: Desk(nursery, engine_maker(kind, tmp_path, max_size), rules)
    url = request.getfixturevalue("tables")
    return lambda max_size, rules: SharedDesk(nursery, rules=rules, url=url, max_size=max_size)


@pytest.fixture
async def open_desk(make_desk: Callable[..., Desk]) -> AsyncIterator[OpenDesk]:
    opened: list[Desk] = []

    async def open_one(*, max_size: int = 1 << 30, **rules: Any) -> Desk:
        desk = make_desk(max_size, replace(RULES, **rules))
        await desk.open()
        opened.append(desk)
        return desk

    yield open_one
    for desk in opened:
        await desk.close()


@pytest.fixture
async def desk(open_desk: OpenDesk) -> Desk:
    return await open_desk()
