"""What steady traffic leaves behind in PostgreSQL: one replica, a part of it failed and retried, short retention.

    make bench-churn [MINUTES=60]

Every minute a line with what the tables hold; at the end every table and index: when as much left as came, at its
largest, and at the end. From then on nothing may grow.
"""

import argparse
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from holdfast.store.postgres.reads import DUE, FRESH
from tests.bench.database import Database, Databases
from tests.bench.load import paced
from tests.bench.measuring import Usage, usage
from tests.bench.sink import Sink
from tests.bench.systems import Holdfast, fleet

MINUTE = 60.0
SETTLED = 20
"""The minute by which as much leaves as comes, and every table was vacuumed once; the slowest has 20 dead rows a
second, and is at 20,000.
"""
FAIL_EVERY = 10
CONNECTIONS = 16
READ = 16
KEYS = {
    "retention__delivered": "1m",
    "ingest__idempotency": "1m",
    "circuit__probe_every": "1m",
    "retry__base": "10s",
}
BUSY = ("messages", "delivered", "keys", "attempts")
SMALL = 100_000
"""Bytes: tables and indexes that never had more are shown as one."""

_SIZES = """SELECT c.relname, pg_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'i') UNION ALL
    SELECT c.relname || ' toast', pg_total_relation_size(c.reltoastrelid) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'holdfast' AND c.relkind = 'r'
    AND c.reltoastrelid <> 0"""
_ROWS = "SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'holdfast'"


@dataclass(frozen=True)
class Sample:
    """One minute's end: bytes by table and index, rows by table, and the pages that reads of 16 messages looked at."""

    sizes: Mapping[str, int]
    live: Mapping[str, int]
    dead: Mapping[str, int]
    fresh: int
    due: int
    requests: int
    usage: Usage

    @property
    def delivered(self) -> int:
        return self.requests - self.requests // FAIL_EVERY

    def size_of(self, names: Sequence[str]) -> int:
        return sum(self.sizes[name] for name in names)


def take(system: Holdfast, database: Database, sink: Sink) -> Sample:
    counted = database.ask(_ROWS)
    return Sample(
        dict(database.ask(_SIZES)),
        {name: live for name, live, _ in counted},
        {name: dead for name, _, dead in counted},
        _pages(database, FRESH, sink.host, 0, b"", [], READ),
        _pages(database, DUE, sink.host, [], READ),
        sink.count(),
        usage(system),
    )


def _pages(database: Database, read: str, *values: object) -> int:
    plan = database.explained(read, *values)["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def churn(database: Database, sink: Sink, rate: float, minutes: int) -> list[Sample]:
    samples: list[Sample] = []
    bell = threading.Event()
    print(f"minute  requests      MB  {'live and dead rows of ' + ', '.join(BUSY):64} pages of a read, fresh and due")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        with fleet(Path(folder, "fleet"), database, **KEYS) as system:
            load = pool.submit(paced, system.urls(sink.url), rate, minutes * MINUTE, CONNECTIONS, True)
            for minute in range(1, minutes + 1):
                bell.wait(MINUTE)
                samples.append(take(system, database, sink))
                print(line(minute, samples[-1]), flush=True)
            told = load.result()
    latency = f"p50 {told.p50 * 1e3:.1f} ms, p99 {told.p99 * 1e3:.1f} ms"
    print(f"\n{told.acked:,} acknowledged, {told.failed:,} not; {latency}")
    return samples


def line(minute: int, sample: Sample) -> str:
    rows = "".join(f"{sample.live[name]:8,}{sample.dead[name]:8,}" for name in BUSY)
    megabytes = sum(sample.sizes.values()) / 1e6
    return f"{minute:6} {sample.requests:9,} {megabytes:7.1f}  {rows:64} {sample.fresh:5} {sample.due:5}"


def table(samples: Sequence[Sample]) -> str:
    names = sorted(samples[-1].sizes, key=lambda name: -samples[-1].sizes[name])
    large = [name for name in names if max(sample.sizes[name] for sample in samples) > SMALL]
    small = [name for name in names if name not in large]
    lines = [f"{'kB':24} {'settled':>9} {'largest':>9} {'at the end':>10} {'ratio':>6}"]
    lines += [_row(name, [name], samples) for name in large]
    lines += [_row(f"{len(small)} small ones", small, samples), _row("all", names, samples)]
    return "\n".join(lines)


def _row(title: str, names: Sequence[str], samples: Sequence[Sample]) -> str:
    sizes = [sample.size_of(names) / 1e3 for sample in samples]
    settled, last = sizes[min(SETTLED, len(sizes)) - 1], sizes[-1]
    return f"{title:24} {settled:9,.0f} {max(sizes):9,.0f} {last:10,.0f} {last / (settled or 1):6.2f}"


def costs(samples: Sequence[Sample]) -> str:
    """By what was delivered: a machine that is busy with other things may not keep up with the rate."""
    messages = samples[-1].delivered - samples[0].delivered
    if not messages:
        return ""
    own, server, wal = samples[-1].usage.each(samples[0].usage, messages)
    cpu = f"CPU {own * 1e6:.0f} us, {server * 1e6:.0f} us in the server"
    return f"{messages:,} delivered, each: WAL {wal:,.0f} bytes, {cpu}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=int, default=60)
    options.add_argument("--rate", type=float, default=200.0, help="webhooks a second")
    given = options.parse_args()
    databases, sink = Databases(), Sink(None, FAIL_EVERY)
    try:
        samples = churn(databases.new(), sink, given.rate, given.minutes)
    finally:
        sink.close()
        databases.close()
    print(f"\n{table(samples)}\n{costs(samples)}")


if __name__ == "__main__":
    main()
