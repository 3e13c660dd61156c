"""The table of a session: printed for people, and as JSON for programs."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure
from tests.bench.scenarios import Scenario

Row = tuple[Scenario, Figure]

COLUMNS = ("what", "figure", "unit", "against", "its figure", "ratio", "spread", "asked", "", "of yardstick", "beside")


def machine() -> dict[str, Any]:
    """What it was measured on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(models),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def verdict(scenario: Scenario, figure: Figure) -> bool | None:
    """None where nothing was asked or nothing could be measured."""
    value = figure.value if scenario.bound.of_figure else figure.ratio
    if value is None or (scenario.bound.at_least is None and scenario.bound.at_most is None):
        return None
    return scenario.bound.met(value)


def document(rows: Sequence[Row], settings: Mapping[str, Any], yardstick: float | None) -> dict[str, Any]:
    return {
        "machine": machine(),
        "settings": dict(settings),
        "rows": [
            {
                "name": scenario.name,
                "what": scenario.what,
                "unit": figure.unit,
                "figure": figure.value,
                "figures": list(figure.ours),
                "against": figure.against,
                "against_figure": figure.base,
                "against_figures": list(figure.other),
                "ratio": figure.ratio,
                "ratios": figure.ratios,
                "asked": str(scenario.bound),
                "asked_of": "figure" if scenario.bound.of_figure else "ratio",
                "met": verdict(scenario, figure),
                "of_yardstick": of_yardstick(figure, yardstick),
                "beside": dict(figure.beside),
                "note": figure.note,
            }
            for scenario, figure in rows
        ],
    }


def of_yardstick(figure: Figure, rate: float | None) -> float | None:
    """The ratio to the yardstick's: its own where the figure is against it, else any rate against its fresh one."""
    if figure.against == "yardstick":
        return figure.ratio
    if figure.unit != "msg/s" or rate is None or figure.value is None:
        return None
    return figure.value / rate


def table(rows: Sequence[Row], yardstick: float | None) -> str:
    lines = [COLUMNS, *(_cells(*row, yardstick) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cells(scenario: Scenario, figure: Figure, yardstick: float | None) -> tuple[str, ...]:
    met = verdict(scenario, figure)
    beside = [f"{name} {number(value)}" for name, value in figure.beside.items()]
    return (
        scenario.what,
        number(figure.value),
        figure.unit,
        figure.against,
        number(figure.base),
        ratio(figure.ratio),
        f"{min(figure.ratios):.2f}-{max(figure.ratios):.2f}" if len(figure.ratios) > 1 else "",
        f"{scenario.bound}{' ' + figure.unit if scenario.bound.of_figure else ''}",
        {True: "met", False: "MISSED", None: ""}[met],
        ratio(of_yardstick(figure, yardstick)),
        ", ".join([figure.note, *beside] if figure.note else beside),
    )


def markdown(rows: Sequence[Row], yardstick: float | None) -> str:
    """The same for a page."""
    lines = ["| what | figure | against | ratio | spread | asked | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        what, figure, unit, against, base, median, spread, asked, met, _, _ = _cells(*row, yardstick)
        compared = f"{against}: {base}" if against else ""
        lines.append(f"| {what} | {figure} {unit} | {compared} | {median} | {spread} | {asked} | {met.lower()} |")
    return "\n".join(lines) + "\n"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
