"""The circuit's diagram from `core.circuit.TRANSITIONS`: an arrow for each pair of states, a line for each event."""

import svg
from words import number, span

from holdfast.config import build
from holdfast.core.circuit import TRANSITIONS, CircuitState, Event

WIDTH, HEIGHT = 900, 430
RULES = build({}).circuit
RATE = f"{RULES.failure_rate:.0%}".replace("%", " %")

SENDS = {
    CircuitState.ENABLED: "everything is sent",
    CircuitState.DISABLED: f"one probe every {span(RULES.probe_every)}",
    CircuitState.FROZEN: "nothing is sent",
}
PLACES = {CircuitState.ENABLED: (30, 40), CircuitState.DISABLED: (650, 40), CircuitState.FROZEN: (340, 330)}
KINDS = {CircuitState.ENABLED: "good", CircuitState.DISABLED: "warn", CircuitState.FROZEN: "cold"}
BOX = (220, 70)

CAUSES = {
    Event.RATE_EXCEEDED: f"over {RATE} failed, of over {RULES.min_attempts} attempts in {span(RULES.window)}",
    Event.RUN_OF_FAILURES: f"{number(RULES.disable_after)} failures in a row",
    Event.SILENT_TOO_LONG: f"over {number(RULES.freeze_after)} in a row, no 2xx for {span(RULES.freeze_silence)}",
    Event.RUN_AT_LIMIT: f"{number(RULES.freeze_at)} failures in a row",
    Event.PROBE_SUCCEEDED: "a probe gets a 2xx",
    Event.OPERATOR_FREEZES: "holdfast freeze HOST",
    Event.OPERATOR_UNFREEZES: "holdfast unfreeze HOST",
}

ENABLED, DISABLED, FROZEN = CircuitState.ENABLED, CircuitState.DISABLED, CircuitState.FROZEN
ARROWS = {
    (ENABLED, DISABLED): ([(250, 60), (650, 60)], (450, 50), "middle", -1),
    (DISABLED, ENABLED): ([(650, 92), (250, 92)], (450, 110), "middle", 1),
    (ENABLED, FROZEN): ([(60, 110), (60, 365), (340, 365)], (70, 205), "start", 1),
    (FROZEN, ENABLED): ([(390, 330), (390, 155), (220, 155), (220, 110)], (399, 290), "start", 1),
    (DISABLED, FROZEN): ([(760, 110), (760, 365), (560, 365)], (750, 205), "end", 1),
}
"""Where each arrow runs, where its words begin, to which side they are set, and whether lines grow down (1) or up."""


def draw() -> str:
    causes: dict[tuple[CircuitState, CircuitState], list[str]] = {}
    for before, events in TRANSITIONS.items():
        for event, (after, _) in events.items():
            causes.setdefault((before, after), []).append(CAUSES[event])
    parts = [part for pair, words in causes.items() for part in _way(pair, words)]
    parts += [part for state in TRANSITIONS for part in _state(state)]
    return svg.picture(WIDTH, HEIGHT, "The states of a circuit and what leads from one to another", parts)


def _way(pair: tuple[CircuitState, CircuitState], words: list[str]) -> list[str]:
    points, (x, y), anchor, direction = ARROWS[pair]
    top = y if direction > 0 else y - 17 * (len(words) - 1)
    lines = [svg.text(x, top + 17 * row, each, "soft", anchor) for row, each in enumerate(words)]
    return [svg.arrow(list(points)), *lines]


def _state(state: CircuitState) -> list[str]:
    x, y = PLACES[state]
    middle = x + BOX[0] / 2
    return [
        svg.box(x, y, *BOX, KINDS[state]),
        svg.text(middle, y + 30, str(state), "strong", "middle"),
        svg.text(middle, y + 51, SENDS[state], "soft", "middle"),
    ]
