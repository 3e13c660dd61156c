"""One run of the demo, from the temporary directory to its removal, however it ends."""

import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from holdfast.clock import BootClock
from holdfast.config import Config
from holdfast.demo.demo_gateway import DemoGateway, demo_config
from holdfast.demo.endpoints import Names, Receiver, Sender
from holdfast.demo.fast_clock import FastClock
from holdfast.demo.narrator import DemoOutput, Narrator, PromiseBroken
from holdfast.demo.story import Story, Summary
from holdfast.store.embedded.lmdb import LmdbEngine


class Stopped(Exception):
    """A signal ended the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_demo(output: DemoOutput) -> Summary:
    """Runs the demo. Raises PromiseBroken, Stopped, and every error of `output`."""
    # The log would repeat the events that the demo prints.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    with TemporaryDirectory(prefix="holdfast-demo-") as folder:
        config = demo_config(Path(folder))
        engine = LmdbEngine(config.store.path, config.store.max_size)
        try:
            return trio.run(DemoRun(config, engine, output).run)
        finally:
            engine.close()


class DemoRun:
    def __init__(self, config: Config, engine: LmdbEngine, output: DemoOutput) -> None:
        self._config = config
        self._engine = engine
        self._output = output
        self._end: Summary | Exception | None = None

    async def run(self) -> Summary:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_on_signal, signals, nursery.cancel_scope)
                await self._run_story()
                nursery.cancel_scope.cancel()
        # Outside of every nursery, which would wrap it in an exception group.
        if isinstance(self._end, Summary):
            return self._end
        raise self._end or PromiseBroken("expected the demo to reach its end")

    async def _stop_on_signal(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        async for number in signals:
            self._end = Stopped(number)
            everything.cancel()

    async def _run_story(self) -> None:
        shop, crm = Receiver("shop.example"), Receiver("crm.example")
        clock = FastClock(BootClock())
        gateway = DemoGateway(self._config, self._engine, clock, Names(shop, crm).resolve)
        async with trio.open_nursery() as nursery:
            for receiver in (shop, crm):
                await nursery.start(receiver.run)
            async with gateway.running():
                sender = Sender(gateway.ingest)
                narrator = Narrator(gateway.events, clock, self._output)
                await nursery.start(narrator.collect_events)
                nursery.start_soon(clock.run, lambda: gateway.dispatcher.is_quiet and not sender.busy)
                try:
                    self._end = await Story(narrator, gateway, sender, shop, crm).run()
                except Exception as error:
                    self._end = error
            nursery.cancel_scope.cancel()
