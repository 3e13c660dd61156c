"""Every test of this folder runs on every engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from contract.builders import RULES, Desk, engine_maker

OpenDesk = Callable[..., Awaitable[Desk]]


@pytest.fixture(params=["lmdb", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def open_desk(kind: str, tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[OpenDesk]:
    opened: list[Desk] = []

    async def open_one(*, max_size: int = 1 << 30, **rules: Any) -> Desk:
        desk = Desk(nursery, engine_maker(kind, tmp_path, max_size), replace(RULES, **rules))
        await desk.open()
        opened.append(desk)
        return desk

    yield open_one
    for desk in opened:
        await desk.close()


@pytest.fixture
async def desk(open_desk: OpenDesk) -> Desk:
    return await open_desk()
