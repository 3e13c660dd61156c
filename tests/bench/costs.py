"""CPU of one message against how many wait: measured at powers of ten, drawn as SVG."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.bench.session import Session

WAITING = (0, 1_000, 10_000, 100_000, 1_000_000)

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 60, 60
COLOURS = ("#0b6e99", "#c4570f")


class Cost(NamedTuple):
    """CPU seconds a message with so many waiting; with none there is nothing to drain."""

    waiting: int
    in_and_out: float
    drained: float | None


class Line(NamedTuple):
    label: str
    values: Sequence[float | None]


def costs(session: Session) -> list[Cost]:
    """`in_and_out` while they wait for a frozen host; `drained` when they are the ones that go out."""
    found = []
    for waiting in WAITING:
        if waiting <= session.backlog:
            in_and_out = session.run_on(session.frozen(waiting)).cpu
            found.append(Cost(waiting, in_and_out, session.drain(waiting).cpu if waiting else None))
    return found


def draw(measured: Sequence[Cost]) -> str:
    lines = (
        Line("accepted and delivered, while they wait for a frozen host", [cost.in_and_out for cost in measured]),
        Line("delivered from that backlog", [cost.drained for cost in measured]),
    )
    highest = max(value for line in lines for value in line.values if value is not None) * 1e6
    step = _step(highest)
    top = ceil(highest / step) * step
    body = [*_frame([f"{cost.waiting:,}" for cost in measured], top, step)]
    for line, colour, row in zip(lines, COLOURS, (0, 1), strict=True):
        body += _line(line, colour, row, len(measured), top)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *body, "</svg>\n"])


def _step(highest: float) -> int:
    """At most six lines of the grid, at round numbers."""
    round_numbers = (factor * 10**power for power in range(7) for factor in (1, 2, 5))
    return next(step for step in round_numbers if step * 6 >= highest)


def _x(position: int, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (position / max(1, count - 1))


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _text(x: float, y: float, text: str, anchor: str = "middle", **more: object) -> str:
    rest = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rest}>{escape(text)}</text>'


def _frame(names: Sequence[str], top: int, step: int) -> list[str]:
    found = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for value in range(0, top + 1, step):
        y = _y(value, top)
        found.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        found.append(_text(LEFT - 8, y + 4, f"{value}", "end"))
    for position, name in enumerate(names):
        found.append(_text(_x(position, len(names)), HEIGHT - BOTTOM + 20, name))
    found.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "messages waiting"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    found.append(_text(18, middle, "CPU, µs a message", transform=f"rotate(-90 18 {middle:.1f})"))
    return found


def _line(line: Line, colour: str, row: int, count: int, top: float) -> list[str]:
    values = [(position, value * 1e6) for position, value in enumerate(line.values) if value is not None]
    points = [(_x(position, count), _y(value, top)) for position, value in values]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    found = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for (x, y), (_, value) in zip(points, values, strict=True):
        found.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        found.append(_text(x, y - 8, f"{value:.0f}", fill=colour))
    key = 20 + 18 * row
    found.append(f'<path d="M{LEFT} {key}h24" stroke="{colour}" stroke-width="2"/>')
    found.append(_text(LEFT + 32, key + 4, line.label, "start"))
    return found
