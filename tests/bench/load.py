"""Load on a system under test: closed with wrk where it is installed, else with own processes; paced with own."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.bench.processes import end, python

OWN_PROCESSES = 2
CONNECTIONS = 32
SIZE = 1024
PACED_CONNECTIONS = 256
FOR_LONG = 600.0
WRK = shutil.which("wrk")


class Load(NamedTuple):
    """What the clients saw; seconds."""

    acked: int
    seconds: float
    p50: float
    p99: float
    failed: int

    @property
    def rate(self) -> float:
        return self.acked / self.seconds


def closed(
    urls: Sequence[str],
    seconds: float,
    size: int = SIZE,
    connections: int = CONNECTIONS,
    own_heads: bool = False,
    spread: int = 1,
) -> Load:
    """Every connection posts as soon as it is answered; with `own_heads` no two requests have the same head. Several
    URLs, which differ by their addresses alone, share the connections. `spread`: so many hosts of the sink take turns.
    """
    if WRK:
        return _wrk(urls, seconds, size, connections, own_heads, spread)
    assert not own_heads, "only wrk gives every request a head of its own"
    return _own(urls, seconds, size, connections, spread)


def paced(
    urls: Sequence[str],
    rate: float,
    seconds: float,
    connections: int = PACED_CONNECTIONS,
    keys: bool = False,
    spread: int = 1,
) -> Load:
    """So many webhooks a second, whether or not the answers keep up; with `keys` each has an idempotency key."""
    flags, share = ["--keys"] if keys else [], len(urls)
    flags.append(f"--spread={spread}")
    return _merge([_generator(url, seconds, SIZE, connections // share, rate / share, *flags) for url in urls])


@contextmanager
def alongside(url: str, rate: float, connections: int) -> Iterator[None]:
    """Many connections that are idle most of the time, for as long as the block lasts; each has been heard once."""
    process = _generator(url, FOR_LONG, SIZE, connections, rate, "--greet")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        assert process.poll() is None, "the idle connections were closed"
    finally:
        end(process)


def _wrk(urls: Sequence[str], seconds: float, size: int, connections: int, own_heads: bool, spread: int) -> Load:
    command = [WRK or "wrk", f"-t{len(urls)}", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    command += ["--latency", "-s", str(Path(__file__).with_name("post.lua")), urls[0]]
    settings = {"BODY": str(size), "ADDRESSES": ",".join(urlsplit(url).netloc for url in urls)}
    settings |= {"SPREAD": str(spread)} | ({"OWN_HEADS": "1"} if own_heads else {})
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def _own(urls: Sequence[str], seconds: float, size: int, connections: int, spread: int) -> Load:
    share, flag = connections // OWN_PROCESSES, f"--spread={spread}"
    return _merge([_generator(urls[each % len(urls)], seconds, size, share, 0, flag) for each in range(OWN_PROCESSES)])


def _generator(
    url: str, seconds: float, size: int, connections: int, rate: float, *more: str
) -> "subprocess.Popen[str]":
    parts = urlsplit(url)
    path = url.partition(parts.netloc)[2]
    options = {"size": size, "connections": connections, "seconds": seconds, "rate": rate}
    flags = [f"--{name}={value}" for name, value in options.items()]
    return python("tests.bench.generator", parts.netloc, path, *flags, *more, stdout=subprocess.PIPE)


def _merge(processes: Sequence["subprocess.Popen[str]"]) -> Load:
    told = [json.loads(process.communicate()[0]) for process in processes]
    latencies = sorted(latency for one in told for latency in one["microseconds"])
    seconds = max(one["seconds"] for one in told)
    failed = sum(one["failed"] for one in told)
    if not latencies:
        return Load(0, seconds, 0.0, 0.0, failed)
    return Load(len(latencies), seconds, _quantile(latencies, 0.5), _quantile(latencies, 0.99), failed)


def _quantile(ordered: Sequence[int], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1e6
