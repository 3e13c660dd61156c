"""Every refusal of ingest: its status, its slug (for `type` and for the counters), its title.

The code that raises one adds a `detail` for the request, which says what to change. The server itself refuses broken
framing, limits and timeouts, before a request reaches ingest.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.http.exceptions import Problem

TYPE_PREFIX = "urn:holdfast:problem:"


class Refusal(NamedTuple):
    status: int
    slug: str
    title: str


BAD_HEADER = Refusal(400, "bad-header", "Malformed header")
NO_TARGET = Refusal(400, "no-target", "No target")
BAD_TARGET = Refusal(400, "bad-target", "Bad target")
TWO_TARGETS = Refusal(400, "two-targets", "Two targets")
DOT_SEGMENTS = Refusal(400, "dot-segments", "Dot segments behind a route")
BAD_HANDOFF = Refusal(400, "bad-handoff", "Bad hand-over")
BAD_KEY = Refusal(400, "bad-idempotency-key", "Bad idempotency key")
EGRESS_DENIED = Refusal(403, "egress-denied", "Target denied by the egress rules")
BROWSER = Refusal(403, "browser", "Requests from browsers are refused")
WRONG_HOST = Refusal(403, "wrong-host", "Host is not this sidecar")
WRONG_TOKEN = Refusal(403, "wrong-token", "Missing or wrong token")
NO_HANDOFF = Refusal(403, "handoff-needs-token", "Hand-overs are not taken without a token")
NOT_PROXIED = Refusal(403, "not-proxied", "Not a proxy for this host")
UNKNOWN_ROUTE = Refusal(404, "unknown-route", "Unknown route")
WRONG_METHOD = Refusal(405, "wrong-method", "Method not allowed")
KEY_REUSED = Refusal(422, "idempotency-key-reused", "Idempotency key reused for another body")
BAD_DELAY = Refusal(422, "bad-delay", "Bad delay")
STORE_FAILED = Refusal(503, "store-failed", "The store failed")
STORE_FULL = Refusal(507, "store-full", "The store is full")
HOST_SHARE_USED = Refusal(507, "host-share-used", "The host used up its share of the store")


class Refused(Problem):
    """A problem from the table above."""

    def __init__(self, refusal: Refusal, detail: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(refusal.status, refusal.title, detail, type=TYPE_PREFIX + refusal.slug, headers=headers)
        self.refusal = refusal
