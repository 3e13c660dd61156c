"""The retry timeline: what `core.schedule` says of a message whose every attempt fails at once."""

import svg
from words import span

from holdfast.config import build
from holdfast.core.schedule import Dead, after_failure

WIDTH, HEIGHT = 1100, 250
LEFT, RIGHT = 46, 1054
DOTS, AXIS = 92, 190
HOUR = 3_600_000
TICK = 6 * HOUR
RULES = build({}).retry


def due_times() -> list[int]:
    """Milliseconds after the first failure, of each attempt; the first one's is 0."""
    times, retry = [0], 0
    while not isinstance(verdict := after_failure(RULES, retry, times[-1], None, 0.0), Dead):
        retry = verdict.retry
        times.append(verdict.due)
    return times


def draw() -> str:
    times = due_times()
    last = times[-1]
    parts = [
        svg.text(LEFT - 16, 30, "A message whose every attempt fails", "strong"),
        svg.text(RIGHT + 16, 30, "each wait is twice the one before", "soft", "end"),
        svg.line([(LEFT, AXIS), (RIGHT, AXIS)]),
    ]
    for hours in range(0, last // HOUR + 1, TICK // HOUR):
        x = _on_axis(hours * HOUR, last)
        parts += [svg.line([(x, AXIS), (x, AXIS + 6)]), svg.text(x, AXIS + 22, f"{hours} h", "soft", "middle")]
    for index, time in enumerate(times):
        parts += _attempt(index, time, len(times), last)
    end = f"after the attempt at {span(last)}: dead (exhausted)"
    parts.append(svg.text(RIGHT + 16, HEIGHT - 12, end, "soft", "end"))
    return svg.picture(WIDTH, HEIGHT, f"{len(times)} attempts over {span(last)}", parts)


def _attempt(index: int, time: int, count: int, last: int) -> list[str]:
    x = LEFT + (RIGHT - LEFT) * index / (count - 1)
    kind = "dead" if index == count - 1 else "warn"
    name = "first" if index == 0 else f"retry {index}"
    return [
        svg.line([(x, DOTS), (_on_axis(time, last), AXIS)], "thin"),
        svg.dot(x, DOTS, kind),
        svg.dot(_on_axis(time, last), AXIS, kind, 4),
        svg.text(x, DOTS - 32, name, "", "middle"),
        svg.text(x, DOTS - 15, "0" if index == 0 else f"+{span(time)}", "soft", "middle"),
    ]


def _on_axis(time: int, last: int) -> float:
    return round(LEFT + (RIGHT - LEFT) * time / last, 1)
