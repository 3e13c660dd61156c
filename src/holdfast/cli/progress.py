"""How far something in bulk has come: a bar on a terminal, nothing anywhere else; and Ctrl-C between its steps."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_LENGTH = 30
_CLEAR_LINE = "\r\x1b[K"
_ENDING = "finishing this step, Ctrl-C again ends it at once"


def bar_wanted() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Bar:
    """On stderr, gone when it is over. Without a total it only counts."""

    def __init__(self, verb: str, total: int | None) -> None:
        self._verb = verb
        self._total = total
        self._shown = bar_wanted()

    def __enter__(self) -> "Bar":
        self.show(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("")

    def show(self, count: int) -> None:
        self._draw(picture(self._verb, count, self._total))

    def say_ending(self) -> None:
        self._draw(_ENDING)

    def _draw(self, text: str) -> None:
        if self._shown:
            # Not through sys.stderr, which a signal's handler may find in the middle of a write.
            os.write(sys.stderr.fileno(), (_CLEAR_LINE + text).encode())


def picture(verb: str, count: int, total: int | None) -> str:
    if not total:
        return f"{count:,} {verb}"
    part = min(count / total, 1.0)
    filled = int(part * _LENGTH)
    return f"[{'#' * filled}{'.' * (_LENGTH - filled)}] {part:4.0%}  {count:,} of {max(count, total):,} {verb}"


@contextmanager
def between_steps(on_asked: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the step under way end first; the function says whether there was one. Twice ends at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        on_asked()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a shell's background job: it has no Ctrl-C
        signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
