"""Ingest itself: a request becomes a stored message and an answer, or a refusal and nothing.

This is the hot path. What depends on the target alone is worked out once and kept in a bounded table, since
apps send to few targets; what is left for each request is one pass over its headers, the message, and the
commit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from holdfast.config import Address, Config
from holdfast.core.errors import EgressDenied, StoreError, StoreFull
from holdfast.core.message import Message, MessageId
from holdfast.http.codec import RequestHead
from holdfast.http.message import PendingResponse, Request
from holdfast.ingest.answer import fill_answer, prepare_answer
from holdfast.ingest.delay import parse_delay
from holdfast.ingest.doorkeeper import Doorkeeper
from holdfast.ingest.handoff import taken_over
from holdfast.ingest.hygiene import Pair, Sifted, dress, sift
from holdfast.ingest.idempotency import idempotency_key
from holdfast.ingest.naming import Naming
from holdfast.ingest.refusals import (
    EGRESS_DENIED,
    HOST_SHARE_USED,
    KEY_REUSED,
    STORE_FAILED,
    STORE_FULL,
    Refused,
)
from holdfast.ingest.sidecar import Sidecar
from holdfast.ingest.target import lane_of
from holdfast.store.port import Accept, Acceptance, Accepted, Duplicate, Hearing

MAX_DESTINATIONS = 1024
LONGEST_KEPT_NAME = 1024

# A failed store means a restart, which takes seconds; room comes with deliveries or with an operator.
_RETRY_AFTER_FAILURE = ((b"retry-after", b"5"),)
_RETRY_AFTER_FULL = ((b"retry-after", b"30"),)


class Clock(Protocol):
    def now(self) -> int:
        """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Destination:
    """All that depends on the target and the way it was named."""

    lane: str
    host: str
    scheme: str
    authority: str
    path: bytes
    url: str
    route: str | None
    route_headers: tuple[Pair, ...]
    signed: bool
    answer: tuple[bytes, ...]


class Ingest:
    """The server's gate and handler.

    `judge_literal(host, port, route)` raises EgressDenied for addresses and ports that the egress rules
    close; `route` tells that an operator wrote the target. `refused` is told the slug of every refusal.
    `listening` is the address that the listener is bound to, `token` what `read_token` found. `acknowledged` is told
    how long each answer took from the complete request on, by the clock of `seconds`.
    """

    def __init__(
        self,
        config: Config,
        store: Acceptance,
        clock: Clock,
        judge_literal: Callable[[str, int, bool], None],
        refused: Callable[[str], None],
        *,
        listening: Address,
        token: bytes | None = None,
        seconds: Callable[[], float] = lambda: 0.0,
        acknowledged: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        sidecar = Sidecar(listening, config.ingest.hosts)
        self._config = config
        self._store = store
        self._clock = clock
        self._judge_literal = judge_literal
        self._refused = refused
        self._seconds = seconds
        self._acknowledged = acknowledged
        self._doorkeeper = Doorkeeper(sidecar, token)
        self._naming = Naming(sidecar, config.ingest, config.routes)
        self._destinations: dict[tuple[bytes, bytes | None], Destination] = {}

    def gate(self, head: RequestHead) -> None:
        try:
            self._doorkeeper.check(head)
        except Refused as refused:
            self._refused(refused.refusal.slug)
            raise

    def __call__(self, request: Request) -> PendingResponse:
        try:
            return self._submit(request, self._seconds())
        except Refused as refused:
            self._refused(refused.refusal.slug)
            raise

    def _submit(self, request: Request, began: float) -> PendingResponse:
        sifted = sift(request.headers)
        if sifted.handoff is not None:
            return self._take_over(request, sifted, began)
        name = (request.target, sifted.target)
        destination = self._destinations.get(name) or self._find_destination(*name)
        now = self._clock.now()
        born, key = now, None
        if sifted.delay is not None:
            born += parse_delay(sifted.delay, self._config.ingest.max_delay)
        if sifted.key is not None:
            key = idempotency_key(sifted.key, request.method, destination.url, destination.route, request.body)
        # Ids are minted in the order of submission: nothing may come between here and `submit`.
        message = Message(
            self._store.mint(now),
            destination.lane,
            destination.host,
            destination.scheme,
            destination.authority,
            destination.path,
            request.method,
            dress(sifted.travelling, destination.route_headers),
            request.body,
            now,
            born,
            destination.route,
            destination.signed,
        )
        promise = _Promise(self, message.id, destination.url, destination.answer, began)
        self._store.submit(Accept(message, key, done=promise))
        return promise.answer

    def _take_over(self, request: Request, sifted: Sifted, began: float) -> PendingResponse:
        accept = taken_over(self._config, self._judge_literal, request, sifted, self._clock.now())
        id, url = accept.message.id, accept.message.target
        promise = _Promise(self, id, url, prepare_answer(self._config.ingest.ack_status, url), began)
        accept.done = promise
        self._store.submit(accept)
        return promise.answer

    def keep(self, promise: "_Promise", result: object) -> None:
        """The store has said what became of a message."""
        try:
            if type(result) is Accepted:
                answer = fill_answer(promise.prepared, promise.id)
            else:
                answer = self._answer_otherwise(result, promise.url)
        except Refused as refused:
            self._refused(refused.refusal.slug)
            promise.answer.resolve(refused)
            return
        promise.answer.resolve(answer)
        self._acknowledged(self._seconds() - promise.began)

    def _answer_otherwise(self, result: object, url: str) -> bytes:
        if isinstance(result, StoreError):
            _refuse_for_store(result)
        if isinstance(result, Duplicate):
            prepared = prepare_answer(self._config.ingest.ack_status, url, duplicate=True)
            return fill_answer(prepared, result.id)
        raise Refused(
            KEY_REUSED,
            "This Idempotency-Key was used for the same method, target and route with another body; use a new "
            "key, or repeat the first body.",
        )

    def _find_destination(self, url: bytes, header: bytes | None) -> Destination:
        target, route = self._naming.resolve(url, header)
        try:
            self._judge_literal(target.host, target.port, route is not None)
        except EgressDenied as denied:
            raise Refused(EGRESS_DENIED, str(denied)) from None
        terms = self._config.routes[route] if route is not None else None
        destination = Destination(
            lane_of(target, self._config.circuit),
            target.host_key,
            target.scheme,
            target.authority,
            target.path,
            target.url,
            route,
            _wire_headers(terms.headers) if terms is not None else (),
            terms is not None and terms.sign is not None,
            prepare_answer(self._config.ingest.ack_status, target.url),
        )
        self._keep(url, header, destination)
        return destination

    def _keep(self, url: bytes, header: bytes | None, destination: Destination) -> None:
        """Bounded in number and in bytes: an app may send to ever new targets."""
        if len(url) + len(header or b"") > LONGEST_KEPT_NAME:
            return
        if len(self._destinations) >= MAX_DESTINATIONS:
            self._destinations.clear()
        self._destinations[url, header] = destination


class _Promise(Hearing):
    """What a client is owed for a message that is on its way to the disk."""

    __slots__ = ("_ingest", "answer", "began", "id", "prepared", "url")

    def __init__(self, ingest: Ingest, id: MessageId, url: str, prepared: tuple[bytes, ...], began: float) -> None:
        self._ingest = ingest
        self.id = id
        self.url = url
        self.prepared = prepared
        self.began = began
        self.answer = PendingResponse()

    def __call__(self, result: Any) -> None:
        self._ingest.keep(self, result)


def _wire_headers(headers: tuple[tuple[str, str], ...]) -> tuple[Pair, ...]:
    return tuple((name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers)


def _refuse_for_store(error: StoreError) -> NoReturn:
    if not isinstance(error, StoreFull):
        raise Refused(
            STORE_FAILED,
            "The webhook may or may not be stored. Repeat it after Retry-After, with the same "
            "Idempotency-Key if it has one.",
            _RETRY_AFTER_FAILURE,
        ) from error
    if error.host is not None:
        raise Refused(
            HOST_SHARE_USED,
            f"No room: {error}. Repeat after Retry-After; an operator can replay or drop those messages, or raise "
            "store.host_share.",
            _RETRY_AFTER_FULL,
        ) from error
    raise Refused(
        STORE_FULL,
        f"No room: {error}. Repeat after Retry-After; an operator can drop dead messages, or raise store.max_size.",
        _RETRY_AFTER_FULL,
    ) from error
