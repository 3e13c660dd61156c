"""A listener that keeps what a store reports."""

from holdfast.core.message import Entry, Message, Standing
from holdfast.store.port import Commit, StoreListener


class Recorder(StoreListener):
    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.accepted: list[Message] = []
        self.arrived: list[Entry] = []
        self.unreadable: list[tuple[str, str]] = []
        self.spools_filled: list[int] = []
        self.spools_emptied: list[tuple[int, int, int]] = []

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.accepted += commit.accepted
        self.arrived += commit.arrived

    def record_unreadable(self, table: str, key: str, fault: str) -> None:
        self.unreadable.append((table, key))

    def spool_filled(self, found: int) -> None:
        self.spools_filled.append(found)

    def spool_emptied(self, messages: int, known: int, duplicates: int) -> None:
        self.spools_emptied.append((messages, known, duplicates))

    @property
    def reported(self) -> list[tuple[Message, bool]]:
        """Messages for this process's delivery, and whether each is active."""
        return [(message, place.standing is Standing.ACTIVE) for message, place in self.arrived]
