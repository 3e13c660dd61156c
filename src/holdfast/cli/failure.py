"""The one error that ends a command: what to say on stderr, and the exit status."""

REFUSED = 1
"""The gateway says no, or is not there."""

MISUSED = 2
"""Wrong usage, or a bad config."""

UNUSABLE = 3
"""The store can't be used here: none is there, a process has it, it lets nobody in, or it is another version's."""


class Failure(Exception):
    """Ends the command: each line goes to stderr, then the process exits with `status`."""

    def __init__(self, *lines: str, status: int = REFUSED) -> None:
        super().__init__(*lines)
        self.lines = lines
        self.status = status
