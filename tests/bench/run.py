"""Every figure that holdfast is held to, measured on this machine.

    make bench [QUICK=1] [BACKLOG=1000000] [ONLY=ack_backlog] [OUT=var/bench.json]

Real processes on loopback: wrk and nginx where they are installed, own ones else. Figures are medians over pairs that
were measured in turn, each with its ratio to the yardstick (`yardstick.py`: a webhook in, group commit, out, and no
bookkeeping) or to holdfast itself without what the row adds. Prints a table, writes it as JSON, and beside that as a
table for a page and with a plot of the cost of a message against the backlog. A whole run takes up to 25 minutes and
6 GB of disk; a quick one, with short runs and a small backlog, 3 minutes and shows only that everything works.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from tests.bench.costs import Cost, costs, draw
from tests.bench.database import Databases
from tests.bench.figures import Figure
from tests.bench.load import WRK
from tests.bench.processes import many_files
from tests.bench.report import Row, document, markdown, table
from tests.bench.scenarios import SCENARIOS, Scenario
from tests.bench.session import Session
from tests.bench.sink import Sink
from tests.bench.stores import Stores

PLOT = "costs"
MANY_HOSTS = 100_000
PER_HOST = 10
"""Messages a host has at least: a small backlog has fewer hosts."""


def arguments(what: str | None, out: Path) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--backlog", type=int, help="messages waiting; 1,000,000, quick: 20,000")
    options.add_argument("--seconds", type=float, help="of each run under load; 5, quick: 1")
    options.add_argument("--pairs", type=int, help="5, quick: 2")
    options.add_argument("--only", default="", help="scenarios whose names begin so")
    options.add_argument("--out", type=Path, default=out)
    given = options.parse_args()
    given.backlog = given.backlog or (20_000 if given.quick else 1_000_000)
    given.seconds = given.seconds or (1.0 if given.quick else 5.0)
    given.pairs = given.pairs or (2 if given.quick else 5)
    return given


@contextmanager
def prepared(given: argparse.Namespace) -> Iterator[Session]:
    """Stores lie beside the result, on a real disk: elsewhere a temporary folder may be memory, where fsync is free."""
    many_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    sink, databases = Sink(), Databases()
    try:
        with tempfile.TemporaryDirectory(dir=given.out.parent, prefix="bench-") as folder:
            hosts = min(MANY_HOSTS, max(1, given.backlog // PER_HOST))
            stores = Stores(Path(folder).absolute())
            yield Session(sink, stores, databases, given.seconds, given.pairs, given.backlog, hosts)
    finally:
        sink.close()
        databases.close()


def measure(scenario: Scenario, session: Session) -> Figure:
    """One that fails is a row that says so; the others go on."""
    began = perf_counter()
    print(f"{scenario.name} ...", file=sys.stderr, flush=True)
    try:
        figure = scenario.how(session)
    except Exception as error:
        figure = Figure("", [], note=f"failed: {error!r}"[:300])
    print(f"{scenario.name}: {perf_counter() - began:.0f} s {figure.note}", file=sys.stderr, flush=True)
    return figure


def write(given: argparse.Namespace, session: Session, rows: Sequence[Row], plotted: Sequence[Cost] = ()) -> None:
    settings = {
        "backlog": session.backlog,
        "hosts": session.hosts,
        "seconds": session.seconds,
        "pairs": session.pairs,
        "sink": session.sink.kind,
        "load": "wrk" if WRK else "own",
    }
    told = document(rows, settings, session.yardstick_rate())
    told["costs"] = [cost._asdict() for cost in plotted]
    given.out.write_text(json.dumps(told, indent=1) + "\n")
    given.out.with_suffix(".md").write_text(markdown(rows, session.yardstick_rate()))
    print(f"\n{told['machine']}\n{settings}\n\n{table(rows, session.yardstick_rate())}\n\nwritten: {given.out}")


def main() -> int:
    given = arguments(__doc__, Path("var/bench.json"))
    chosen = [scenario for scenario in SCENARIOS if scenario.name.startswith(given.only)]
    if not chosen and given.only != PLOT:
        print(f"no scenario begins with {given.only!r}: {', '.join(one.name for one in SCENARIOS)}, {PLOT}")
        return 2
    with prepared(given) as session:
        rows = [(scenario, measure(scenario, session)) for scenario in chosen]
        plotted = costs(session) if PLOT.startswith(given.only) else []
        write(given, session, rows, plotted)
        if plotted:
            given.out.with_suffix(".svg").write_text(draw(plotted))
    return 1 if any(figure.note.startswith("failed") for _, figure in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
