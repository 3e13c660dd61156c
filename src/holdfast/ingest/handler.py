"""Ingest: turns a request into a stored message and a response, or refuses it and stores nothing.

This is the hot path. Everything that depends on the target alone is computed once and kept in a bounded table, since
apps send to few targets. Each request then costs one pass over its headers, the message, and the commit.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from holdfast.config import Address, Config
from holdfast.core.errors import EgressDenied, StoreError, StoreFull
from holdfast.core.message import Message, MessageId, id_text
from holdfast.core.target import lane_of
from holdfast.http.codec import RequestHead
from holdfast.http.request_response import Headers, PendingResponse, Request, Response
from holdfast.ingest.access import AccessCheck, OwnAddress
from holdfast.ingest.headers import Pair, SplitHeaders, idempotency_key, message_headers, parse_delay, split_headers
from holdfast.ingest.incoming_handoff import accept_from_handoff
from holdfast.ingest.refusals import EGRESS_DENIED, HOST_SHARE_USED, KEY_REUSED, STORE_FAILED, STORE_FULL, Refused
from holdfast.ingest.target_forms import TargetForms
from holdfast.store.port import Accept, Acceptance, Accepted, DoneOrFailed, Duplicate

MAX_DESTINATIONS = 1024
MAX_DESTINATION_NAME = 1024

# A failed store restarts within seconds. Room comes with deliveries, or from an operator.
_RETRY_AFTER_FAILURE = ((b"retry-after", b"5"),)
_RETRY_AFTER_FULL = ((b"retry-after", b"30"),)

# As long as an id, and of bytes that no target contains.
_ID_PLACEHOLDER = b"\0" * len(id_text(bytes(16)))


class TimeSource(Protocol):
    def now(self) -> int:
        """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Everything that depends only on the target and the form in which it was named."""

    lane: str
    host: str
    scheme: str
    authority: str
    path: bytes
    url: str
    route: str | None
    route_headers: tuple[Pair, ...]
    signed: bool
    response: tuple[bytes, ...]


class Ingest:
    """The gate and the handler of the ingest server.

    `judge_literal(host, port, is_route)` raises EgressDenied for addresses and ports that the egress rules deny.
    `is_route` means that the target is from the config. `refused` gets the slug of every refusal. `listening` is the
    address of the listener, `token` the result of `read_token`. `acknowledged` gets the time from each complete request
    to its response, by the clock `seconds`.
    """

    def __init__(
        self,
        config: Config,
        store: Acceptance,
        clock: TimeSource,
        judge_literal: Callable[[str, int, bool], None],
        refused: Callable[[str], None],
        *,
        listening: Address,
        token: bytes | None = None,
        seconds: Callable[[], float] = lambda: 0.0,
        acknowledged: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        own_address = OwnAddress(listening, config.ingest.hosts)
        self._config = config
        self._store = store
        self._clock = clock
        self._judge_literal = judge_literal
        self._refused = refused
        self._seconds = seconds
        self._acknowledged = acknowledged
        self._access = AccessCheck(own_address, token)
        self._target_forms = TargetForms(own_address, config.ingest, config.routes)
        self._destinations: dict[tuple[bytes, bytes | None], Destination] = {}

    def gate(self, head: RequestHead) -> None:
        try:
            self._access.check(head)
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
        headers = split_headers(request.headers)
        if headers.handoff is not None:
            return self._submit_handoff(request, headers, began)
        name = (request.target, headers.target)
        destination = self._destinations.get(name) or self._find_destination(*name)
        now = self._clock.now()
        born, key = now, None
        if headers.delay is not None:
            born += parse_delay(headers.delay, self._config.ingest.max_delay)
        if headers.key is not None:
            key = idempotency_key(headers.key, request.method, destination.url, destination.route, request.body)
        # Ids are minted in the order of submission: nothing may come between here and `submit`.
        message = Message(
            self._store.mint(now),
            destination.lane,
            destination.host,
            destination.scheme,
            destination.authority,
            destination.path,
            request.method,
            message_headers(headers.forwarded, destination.route_headers),
            request.body,
            now,
            born,
            destination.route,
            destination.signed,
        )
        pending = _PendingAccept(self, message.id, destination.url, destination.response, began)
        self._store.submit(Accept(message, key, done=pending))
        return pending.response

    def _submit_handoff(self, request: Request, headers: SplitHeaders, began: float) -> PendingResponse:
        accept = accept_from_handoff(self._config, self._check_egress, request, headers, self._clock.now())
        id, url = accept.message.id, accept.message.target
        pending = _PendingAccept(self, id, url, _prepare_response(self._config.ingest.ack_status, url), began)
        accept.done = pending
        self._store.submit(accept)
        return pending.response

    def finish(self, pending: "_PendingAccept", result: object) -> None:
        """Responds to a message, by the result of the store."""
        try:
            if type(result) is Accepted:
                response = _fill_response(pending.prepared, pending.id)
            else:
                response = self._response_if_not_accepted(result, pending.url)
        except Refused as refused:
            self._refused(refused.refusal.slug)
            pending.response.resolve(refused)
            return
        pending.response.resolve(response)
        self._acknowledged(self._seconds() - pending.began)

    def _response_if_not_accepted(self, result: object, url: str) -> bytes:
        if isinstance(result, StoreError):
            _refuse_for_store(result)
        if isinstance(result, Duplicate):
            prepared = _prepare_response(self._config.ingest.ack_status, url, duplicate=True)
            return _fill_response(prepared, result.id)
        raise Refused(
            KEY_REUSED,
            "This Idempotency-Key was used for the same method, target and route with another body; use a new "
            "key, or repeat the first body.",
        )

    def _find_destination(self, url: bytes, header: bytes | None) -> Destination:
        target, route = self._target_forms.resolve(url, header)
        self._check_egress(target.host, target.port, route is not None)
        settings = self._config.routes[route] if route is not None else None
        destination = Destination(
            lane_of(target, self._config.circuit),
            target.host_key,
            target.scheme,
            target.authority,
            target.path,
            target.url,
            route,
            _encode_headers(settings.headers) if settings is not None else (),
            settings is not None and settings.sign is not None,
            _prepare_response(self._config.ingest.ack_status, target.url),
        )
        # Bounded in number and in bytes: an app may send to ever new targets.
        if len(url) + len(header or b"") <= MAX_DESTINATION_NAME:
            if len(self._destinations) >= MAX_DESTINATIONS:
                self._destinations.clear()
            self._destinations[url, header] = destination
        return destination

    def _check_egress(self, host: str, port: int, is_route: bool) -> None:
        try:
            self._judge_literal(host, port, is_route)
        except EgressDenied as denied:
            raise Refused(EGRESS_DENIED, str(denied)) from None


class _PendingAccept(DoneOrFailed):
    """A message that is not yet on disk, and the response that its client waits for."""

    __slots__ = ("_ingest", "began", "id", "prepared", "response", "url")

    def __init__(self, ingest: Ingest, id: MessageId, url: str, prepared: tuple[bytes, ...], began: float) -> None:
        self._ingest = ingest
        self.id = id
        self.url = url
        self.prepared = prepared
        self.began = began
        self.response = PendingResponse()

    def __call__(self, result: Any) -> None:
        self._ingest.finish(self, result)


def _prepare_response(status: int, url: str, *, duplicate: bool = False) -> tuple[bytes, ...]:
    """Encodes the response to an accepted message. Returns the parts around the id, which alone differs."""
    headers: Headers = [(b"content-type", b"application/json")] if status != 204 else []
    headers.append((b"holdfast-message-id", _ID_PLACEHOLDER))
    if duplicate:
        headers.append((b"holdfast-duplicate", b"true"))
    body = b'{"id": "%s", "target": %s, "state": "queued"}' % (_ID_PLACEHOLDER, json.dumps(url).encode())
    encoded = Response(status, headers, b"" if status == 204 else body).encode()
    return tuple(encoded.split(_ID_PLACEHOLDER))


def _fill_response(prepared: tuple[bytes, ...], id: MessageId) -> bytes:
    return id_text(id).encode("ascii").join(prepared)


def _encode_headers(headers: tuple[tuple[str, str], ...]) -> tuple[Pair, ...]:
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
