"""The outcome of an attempt: delivered or failed, whose fault, and the receiver's Retry-After.

The status line and complete headers decide; the body can't change it.
"""

import errno
import re
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from holdfast.core.message import ANSWER_KEPT, ErrorKind, Fault

HERE_ERRORS = frozenset({ErrorKind.EGRESS_DENIED, ErrorKind.SECRET, ErrorKind.INTERRUPTED})
"""Errors that are always this side's fault. For the others a proxy, the resolver or errno decides."""

HERE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENETUNREACH})
"""No descriptors, buffers, memory or route on this side."""

HOST_HOLDING = frozenset({429, 503})
"""Statuses whose Retry-After holds the whole host, not only this message."""

_SECONDS = re.compile(r"[0-9]+")
_LONGEST_DIGITS = 12


class Outcome(NamedTuple):
    """`fault` is None exactly when the message was delivered. `retry_after` is a moment."""

    status: int | None = None
    error: ErrorKind | None = None
    detail: str | None = None
    fault: Fault | None = None
    retry_after: int | None = None
    address: str | None = None
    answer: bytes | None = None

    @property
    def delivered(self) -> bool:
        return self.fault is None

    def host_hold(self, latest: int) -> int:
        """Until when the whole host gets no requests, but not after `latest`; 0 if it did not ask for that."""
        return min(self.retry_after or 0, latest) if self.status in HOST_HOLDING else 0


def is_success(status: int) -> bool:
    return 200 <= status <= 299


def of_answer(
    status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, address: str | None, now: int, wall: int
) -> Outcome:
    """`now` and `wall` are the same moment by holdfast's clock and by the wall clock."""
    if is_success(status):
        return Outcome(status=status, address=address)
    return Outcome(
        status=status,
        detail=f"the receiver answered {status}",
        fault=Fault.HOST,
        retry_after=_retry_after(headers, now, wall),
        address=address,
        answer=body[:ANSWER_KEPT],
    )


def of_error(
    kind: ErrorKind, detail: str, *, address: str | None = None, number: int | None = None, here: bool = False
) -> Outcome:
    """`number` is the errno behind it. `here`: the caller knows that the fault is on this side."""
    is_here = here or kind in HERE_ERRORS or number in HERE_ERRNOS
    return Outcome(error=kind, detail=detail, fault=Fault.HERE if is_here else Fault.HOST, address=address)


def _retry_after(headers: Iterable[tuple[bytes, bytes]], now: int, wall: int) -> int | None:
    for name, value in headers:
        if name == b"retry-after":
            return parse_retry_after(value.decode("latin-1"), now, wall)
    return None


def parse_retry_after(value: str, now: int, wall: int) -> int | None:
    """The moment that a Retry-After asks for, in seconds or as a date; None if it is malformed or in the past. A date
    is by the wall clock, so its distance from `wall` is the wait.
    """
    value = value.strip()
    if _SECONDS.fullmatch(value):
        # A number of thousands of digits can't be converted. The schedule limits the wait anyway.
        moment = now + int(value if len(value) <= _LONGEST_DIGITS else "9" * _LONGEST_DIGITS) * 1000
    else:
        try:
            date = parsedate_to_datetime(value)
            moment = now + int(date.replace(tzinfo=date.tzinfo or UTC).timestamp() * 1000) - wall
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return moment if moment > now else None
