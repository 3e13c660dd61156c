"""The yardstick: webhook in, group commit with fsync, webhook out, and nothing else.

No limits, no errors, no retries, no circuits: what trio, httptools, msgpack and lmdb allow on one core when nothing is
looked after. holdfast's figures are given as ratios to this one's, measured in the same run.

    python -m tests.bench.yardstick --store FOLDER --sink 127.0.0.1:9100

Prints its port. POST anything to it; everything goes to the sink.
"""

import argparse
import signal
import time
from collections.abc import Sequence
from functools import partial

import httptools
import lmdb
import msgpack
import trio

ACK = b'HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"id":"msg"}'
IN_FLIGHT = 64

Operation = tuple[bytes, bytes, bytes | None, trio.Event | None]
"""Key, record, body (none: the message is finished), and who waits for the commit."""


class Parsed:
    """Collects one message from an httptools parser."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.target, self.complete = b"", False
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


class Pipeline:
    def __init__(self, folder: str, sink_host: str, sink_port: int) -> None:
        self.env = lmdb.open(folder, map_size=8 << 30, max_dbs=4, lib_version=0)
        self.messages, self.bodies, self.queue, self.finished = (
            self.env.open_db(name) for name in (b"messages", b"bodies", b"queue", b"finished")
        )
        self.sink = sink_host, sink_port
        self.head = (
            f"POST /hook HTTP/1.1\r\nhost: {sink_host}:{sink_port}\r\ncontent-type: application/json\r\n"
            "webhook-id: msg_1\r\ncontent-length: "
        ).encode()
        self.pending: list[Operation] = []
        self.wake = trio.Event()
        self.to_deliver, self.deliveries = trio.open_memory_channel[tuple[bytes, bytes]](1_000_000)
        self.idle_connections: list[trio.SocketStream] = []
        self.accepted = 0

    def commit(self, operations: Sequence[Operation]) -> None:
        with self.env.begin(write=True) as txn:
            for key, record, body, _ in operations:
                if body is not None:
                    txn.put(key, record, db=self.messages, append=True)
                    txn.put(key, body, db=self.bodies, append=True)
                    txn.put(key, b"lane", db=self.queue, append=True)
                else:
                    for table in (self.messages, self.bodies, self.queue):
                        txn.delete(key, db=table)
                    txn.put(key, record, db=self.finished)

    async def writer(self) -> None:
        while True:
            await self.wake.wait()
            self.wake = trio.Event()
            operations, self.pending = self.pending, []
            await trio.to_thread.run_sync(self.commit, operations)
            for *_, committed in operations:
                if committed is not None:
                    committed.set()

    def submit(self, *operation: *Operation) -> None:
        self.pending.append(operation)
        self.wake.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        parsed = Parsed()
        parser = httptools.HttpRequestParser(parsed)
        try:
            while data := await stream.receive_some(16384):
                parser.feed_data(data)
                if not parsed.complete:
                    continue
                body = b"".join(parsed.body)
                self.accepted += 1
                key = self.accepted.to_bytes(16, "big")
                record = msgpack.packb([parser.get_method(), parsed.target, parsed.headers, time.time()])
                parsed.reset()
                committed = trio.Event()
                self.submit(key, record, body, committed)
                await committed.wait()
                self.to_deliver.send_nowait((key, body))
                await stream.send_all(ACK)
        except trio.BrokenResourceError:
            pass

    async def deliver(self) -> None:
        parsed = Parsed()
        async for key, body in self.deliveries:
            stream = self.idle_connections.pop() if self.idle_connections else await trio.open_tcp_stream(*self.sink)
            parser = httptools.HttpResponseParser(parsed)
            with trio.fail_after(30):
                await stream.send_all(self.head + b"%d\r\n\r\n" % len(body) + body)
                while not parsed.complete:
                    parser.feed_data(await stream.receive_some(16384))
            parsed.reset()
            self.idle_connections.append(stream)
            self.submit(key, msgpack.packb([parser.get_status_code(), time.time()]), None, None)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.writer)
            for _ in range(IN_FLIGHT):
                nursery.start_soon(self.deliver)
            listeners = await nursery.start(partial(trio.serve_tcp, self.serve, 0, host="127.0.0.1"))
            print(listeners[0].socket.getsockname()[1], flush=True)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--store", required=True)
    options.add_argument("--sink", required=True)
    arguments = options.parse_args()
    host, _, port = arguments.sink.rpartition(":")
    trio.run(Pipeline(arguments.store, host, int(port)).run)


if __name__ == "__main__":
    main()
