"""What steady traffic leaves behind in PostgreSQL: one replica, a part of it failed and retried, short retention.

    make bench-churn [MINUTES=60]

Every minute a line with what the tables hold; at the end every table and index, at the fifth minute, at its largest and
at the end. Once as much leaves as comes, nothing may grow.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.database import Database, serving
from bench.load import paced
from bench.processes import cpu_seconds, tree
from bench.sink import Sink
from harness import running
from holdfast.store.postgres.claiming import CLAIM_DUE, CLAIM_FRESH

MINUTE = 60.0
SETTLED = 5
"""The minute after which as much leaves as comes: retention and the grace after a start are over."""
FAIL_EVERY = 10
CONNECTIONS = 16
KEYS = {
    "retention__delivered": "1m",
    "ingest__idempotency": "1m",
    "circuit__probe_every": "1m",
    "retry__base": "10s",
    "delivery__per_host": "64",
}
BUSY = ("messages", "delivered", "keys", "attempts")

_SIZES = """SELECT c.relname, pg_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'i') UNION ALL
    SELECT c.relname || ' toast', pg_total_relation_size(c.reltoastrelid) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'holdfast' AND c.relkind = 'r'
    AND c.reltoastrelid <> 0"""
_ROWS = "SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'holdfast'"


@dataclass(frozen=True)
class Sample:
    """One minute's end: bytes by table and index, rows by table, and the pages that a claim looked at."""

    sizes: Mapping[str, int]
    live: Mapping[str, int]
    dead: Mapping[str, int]
    fresh: int
    due: int
    wal: int
    gateway: float
    server: float

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


def take(database: Database, gateway: int, lane: str) -> Sample:
    counted = database.ask(_ROWS)
    return Sample(
        dict(database.ask(_SIZES)),
        {name: live for name, live, _ in counted},
        {name: dead for name, _, dead in counted},
        _pages(database, CLAIM_FRESH, 0, lane, 16),
        _pages(database, CLAIM_DUE, 0, lane, 1 << 62, 16),
        database.wal(),
        cpu_seconds(tree(gateway)),
        cpu_seconds(tree(database.postmaster)),
    )


def _pages(database: Database, claim: str, *values: object) -> int:
    plan = database.explained(claim, *values)["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def churn(database: Database, rate: float, minutes: int) -> list[Sample]:
    samples: list[Sample] = []
    sink, bell = Sink(None, FAIL_EVERY), threading.Event()
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        with running(Path(folder, "gateway"), store__url=database.url, **KEYS) as gateway:
            url = f"http://{gateway.ingest}/{sink.url}"
            load = pool.submit(paced, url, rate, minutes * MINUTE, CONNECTIONS, True)
            for minute in range(1, minutes + 1):
                bell.wait(MINUTE)
                samples.append(take(database, gateway.process.pid, sink.host))
                print(line(minute, samples[-1], sink.count()), flush=True)
            told = load.result()
            gateway.stop()
    print(
        f"\n{told.acked:,} acknowledged, {told.failed:,} not; p50 {told.p50 * 1e3:.1f} ms, p99 {told.p99 * 1e3:.1f} ms"
    )
    sink.close()
    return samples


HEAD = f"{'minute':>6} {'requests':>9} {'MB':>7}  {'live and dead rows of ' + ', '.join(BUSY):64} claim: pages, fresh and due"


def line(minute: int, sample: Sample, requests: int) -> str:
    rows = "".join(f"{sample.live[name]:8,}{sample.dead[name]:8,}" for name in BUSY)
    return f"{minute:6} {requests:9,} {sample.total / 1e6:7.1f}  {rows:64} {sample.fresh:5} {sample.due:5}"


def table(samples: Sequence[Sample], rate: float) -> str:
    settled, last = samples[min(SETTLED, len(samples)) - 1], samples[-1]
    lines = [f"{'kB':24} {'settled':>9} {'largest':>9} {'at the end':>10} {'ratio':>6}"]
    for name in sorted(last.sizes, key=lambda each: -last.sizes[each]):
        largest = max(sample.sizes[name] for sample in samples)
        lines.append(_row(name, settled.sizes[name], largest, last.sizes[name]))
    lines.append(_row("all", settled.total, max(sample.total for sample in samples), last.total))
    messages = rate * MINUTE * (len(samples) - 1) or 1
    cpu = [(last.gateway - samples[0].gateway), (last.server - samples[0].server)]
    costs = ", ".join(f"{name} {used / messages * 1e6:.0f} us" for name, used in zip(("gateway", "server"), cpu))
    lines.append(f"a webhook: WAL {(last.wal - samples[0].wal) / messages:,.0f} bytes, CPU: {costs}")
    return "\n".join(lines)


def _row(name: str, settled: int, largest: int, last: int) -> str:
    ratio = f"{last / settled:.2f}" if settled else ""
    return f"{name:24} {settled / 1e3:9,.0f} {largest / 1e3:9,.0f} {last / 1e3:10,.0f} {ratio:>6}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=int, default=60)
    options.add_argument("--rate", type=float, default=200.0, help="webhooks a second")
    given = options.parse_args()
    with serving() as server:
        samples = churn(Database(server), given.rate, given.minutes)
    print(f"\n{table(samples, given.rate)}")


if __name__ == "__main__":
    sys.exit(main())
