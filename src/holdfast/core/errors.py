"""The errors that cross from one package of holdfast to another.

    HoldfastError
    +-- StoreError
    |   +-- StoreUnusable      the store can't be opened here (exit 3)
    |   |   +-- StoreInUse     another process has it
    |   +-- StoreUnreachable   the database can't be reached now; it may come back (503)
    |   |   +-- RowsLocked     another session has locked the rows; nothing was written
    |   +-- Fenced             this replica no longer owns the shard; nothing was written
    |   +-- StoreFull          no room for this message (507)
    |   +-- CommitFailed       the disk failed a commit; the process ends (503, exit 4)
    |   +-- CorruptRecord      one record can't be read; the others can
    +-- ReloadUnfinished       a part of the gateway has not applied the new config in time
    +-- EgressDenied           the egress rules refuse the target, at ingest or at an attempt
    +-- NameNotResolved        the target's name has no address
    +-- SecretMissing          a route's messages can't be signed now, and are not sent unsigned

Errors of lmdb, psycopg, sockets, ssl and h11 are mapped to one of these, or to an Outcome, where they are called.
Answers to apps are `http.problem.Problem`; faults of a config are `config.ConfigError`.
"""


class HoldfastError(Exception):
    """The root. To catch it is to catch every expected error and no bug."""


class StoreError(HoldfastError):
    """Durable state could not be read or written."""


class StoreUnusable(StoreError):
    """The store can't be opened here: its file system, its version or its permissions do not fit."""


class StoreInUse(StoreUnusable):
    """Another process has the store open."""


class StoreUnreachable(StoreError):
    """The database can't be reached, or takes no writes. The operation may or may not have been done."""


class RowsLocked(StoreUnreachable):
    """Another session holds a lock on rows for too long. Nothing was written."""


class Fenced(StoreError):
    """Another replica owns the shard, or uses this replica's number. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("another replica owns it now")


class StoreFull(StoreError):
    """There is no room for a new message; outcomes are still recorded."""

    def __init__(self, detail: str, *, host: str | None = None) -> None:
        super().__init__(detail)
        self.host = host


class CommitFailed(StoreError):
    """A commit failed, and not for lack of room: the group may or may not be on disk."""


class CorruptRecord(StoreError):
    """A stored record can't be decoded."""


class ReloadUnfinished(HoldfastError):
    """A part of the gateway has not applied the new config in time. It does so as soon as it can."""


class EgressDenied(HoldfastError):
    """The egress rules do not allow this target."""


class NameNotResolved(HoldfastError):
    """The resolver gave no address. `here`: the fault is on this side (EAI_AGAIN)."""

    def __init__(self, detail: str, *, here: bool) -> None:
        super().__init__(detail)
        self.here = here


class SecretMissing(HoldfastError):
    """A signing secret can't be read, or is not valid. The text never repeats it."""
