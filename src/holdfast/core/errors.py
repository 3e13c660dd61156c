"""Every error that holdfast raises on purpose and lets cross from one room to another.

    HoldfastError
    +-- StoreError
    |   +-- StoreUnusable   the store can't be opened here (exit 3)
    |   |   +-- StoreInUse  another process has it
    |   +-- StoreUnreachable       the database can't be reached now; it may come back (503)
    |   |   +-- RowsLocked  someone else has locked what was to be written; nothing was
    |   +-- Fenced          this replica does not own what it writes to any more; nothing was written
    |   +-- StoreFull       no room for this message (507)
    |   +-- CommitFailed    the disk failed a commit: nothing after it can be trusted (503, exit 4)
    |   +-- CorruptRecord   one record can't be read; the others can
    +-- EgressDenied        the guard refuses the target, at ingest or at an attempt
    +-- NameNotResolved     the target's name gave no address
    +-- SecretMissing       a route's messages can't be signed now, and are not sent unsigned

What comes from outside (lmdb, psycopg, sockets, ssl, h11) is mapped to one of these, or to an Outcome, at the boundary
and only there. Refusals that an app gets to see are `http.problem.Problem`; faults of a config are
`config.ConfigError`.
"""


class HoldfastError(Exception):
    """The root: catching it catches all that holdfast means to say, and no bug."""


class StoreError(HoldfastError):
    """Durable state could not be read or written."""


class StoreUnusable(StoreError):
    """The store can't be opened here: another file system, another version, not ours to write."""


class StoreInUse(StoreUnusable):
    """Another process has the store open."""


class StoreUnreachable(StoreError):
    """The database can't be reached, or does not take writes. What was asked may or may not have been done."""


class RowsLocked(StoreUnreachable):
    """Another session has locked rows of the database for longer than is waited for them. Nothing was written."""


class Fenced(StoreError):
    """Another replica owns what was to be written, or acts under this one's number. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("another replica owns it now")


class StoreFull(StoreError):
    """There is no room for a new message; outcomes are still recorded."""

    def __init__(self, detail: str, *, host: str | None = None) -> None:
        super().__init__(detail)
        self.host = host


class CommitFailed(StoreError):
    """A commit failed for another reason than room: the group may or may not be on disk."""


class CorruptRecord(StoreError):
    """A stored record can't be decoded."""


class ReloadUnfinished(HoldfastError):
    """A part of the gateway has not taken over the new config in time; it does so as soon as it can."""


class EgressDenied(HoldfastError):
    """The egress rules do not let this target be dialled."""


class NameNotResolved(HoldfastError):
    """The resolver gave no address. `here` tells whether that is this side's failure (EAI_AGAIN)."""

    def __init__(self, detail: str, *, here: bool) -> None:
        super().__init__(detail)
        self.here = here


class SecretMissing(HoldfastError):
    """A signing secret can't be had, or is none. The text never repeats it."""
