"""One run of the demo, from the temporary folder to its removal, however it ends."""

import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from holdfast.clock import BootClock
from holdfast.config import Config
from holdfast.demo.clock import FastClock
from holdfast.demo.gateway import DemoGateway, demo_config
from holdfast.demo.promise import PromiseBroken
from holdfast.demo.receiver import Names, Receiver
from holdfast.demo.sender import Sender
from holdfast.demo.stage import Stage, Teller
from holdfast.demo.story import Story, Summary
from holdfast.store.embedded.lmdb import LmdbEngine


class Stopped(Exception):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def play(teller: Teller) -> Summary:
    """Tell the story. Raises PromiseBroken, Stopped, and whatever telling it raises."""
    # The story is told from the same events as the log.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    with TemporaryDirectory(prefix="holdfast-demo-") as folder:
        config = demo_config(Path(folder))
        engine = LmdbEngine(config.store.path, config.store.max_size)
        try:
            return trio.run(Play(config, engine, teller).run)
        finally:
            engine.close()


class Play:
    def __init__(self, config: Config, engine: LmdbEngine, teller: Teller) -> None:
        self._config = config
        self._engine = engine
        self._teller = teller
        self._end: Summary | Exception | None = None

    async def run(self) -> Summary:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, signals, nursery.cancel_scope)
                await self._perform()
                nursery.cancel_scope.cancel()
        # Outside of every nursery, which would make groups of what is raised.
        if isinstance(self._end, Summary):
            return self._end
        raise self._end or PromiseBroken("expected the demo to come to its end")

    async def _watch(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        async for number in signals:
            self._end = Stopped(number)
            everything.cancel()

    async def _perform(self) -> None:
        shop, crm = Receiver("shop.example"), Receiver("crm.example")
        clock = FastClock(BootClock())
        gateway = DemoGateway(self._config, self._engine, clock, Names(shop, crm).resolve)
        async with trio.open_nursery() as nursery:
            for receiver in (shop, crm):
                await nursery.start(receiver.run)
            async with gateway.running():
                sender = Sender(gateway.ingest)
                stage = Stage(gateway, clock, sender, self._teller)
                await nursery.start(stage.follow)
                nursery.start_soon(clock.run, lambda: gateway.dispatcher.is_quiet and not sender.busy)
                try:
                    self._end = await Story(stage, shop, crm).tell()
                except Exception as error:
                    self._end = error
            nursery.cancel_scope.cancel()
