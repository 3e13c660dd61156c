"""What `--watch` does: the same view again and again, in place on a terminal, as repeated blocks anywhere else."""

import shutil
import sys
import time
from collections.abc import Callable

from holdfast.cli.times import wall_clock

EVERY = 2.0

_CLIP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_CLEAR_DOWN = "\x1b[J"

View = Callable[[], list[str]]


def show(view: View, *, watch: bool, as_json: bool) -> None:
    """Print a view once; with `watch` go on until Ctrl-C, or until the gateway is gone."""
    if not watch:
        print("\n".join(view()))
    elif as_json or not sys.stdout.isatty():
        _repeat(view, as_json)
    else:
        _redraw(view)


def _repeat(view: View, as_json: bool) -> None:
    while True:
        lines = view() if as_json else [_heading(), *view(), ""]
        print("\n".join(lines), flush=True)
        time.sleep(EVERY)


def _redraw(view: View) -> None:
    drawn = 0
    while True:
        lines = fitted([_heading(), *view()], shutil.get_terminal_size().lines - 1)
        # Up to where the last picture began; what came before it on the screen stays.
        up = f"\x1b[{drawn}F" if drawn else ""
        print(up + _CLEAR_DOWN + _CLIP + "\n".join(lines) + _WRAP, flush=True)
        drawn = len(lines)
        time.sleep(EVERY)


def fitted(lines: list[str], height: int) -> list[str]:
    """As many lines as a screen shows, the last of them saying that there are more."""
    return lines if len(lines) <= height else [*lines[: max(height - 1, 1)], "... the rest does not fit here"]


def _heading() -> str:
    return f"{wall_clock():%Y-%m-%d %H:%M:%S} UTC, every {EVERY:g} s until Ctrl-C"
