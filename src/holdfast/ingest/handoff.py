"""A message that another holdfast hands over: the same id, its age, its place in the schedule, and no other way in.

It comes with that one's method, headers and body, `Holdfast-Target` and `Holdfast-Handoff`; `core/handoff_header.py`
has the grammar. Only who shows the token may hand over: whoever can set ages and ids could make messages expire.

What this side's config says holds here. A route of the same name to the same host is the message's route, with its
time limit, signature and exemption; without one the message is judged as if its URL had been sent by prefix. A message
of a signed route is taken only where that route signs too.
"""

from collections.abc import Callable

from holdfast.config import Config
from holdfast.core.errors import EgressDenied
from holdfast.core.handoff_header import HandoffFacts, handoff_digest, read_handoff
from holdfast.core.idempotency import body_digest
from holdfast.core.message import Message
from holdfast.http.message import Request
from holdfast.ingest.hygiene import Sifted
from holdfast.ingest.refusals import BAD_HANDOFF, EGRESS_DENIED, UNKNOWN_ROUTE, Refused
from holdfast.ingest.target import Target, lane_of, parse_target
from holdfast.store.port import Accept, IdempotencyKey


def taken_over(
    config: Config, judge_literal: Callable[[str, int, bool], None], request: Request, sifted: Sifted, now: int
) -> Accept:
    """The operation that stores what a request hands over, or Refused."""
    facts = _facts(request, sifted, now)
    target = parse_target(sifted.target or b"")
    route = _route(config, facts, target)
    try:
        judge_literal(target.host, target.port, route is not None)
    except EgressDenied as denied:
        raise Refused(EGRESS_DENIED, str(denied)) from None
    key = IdempotencyKey(handoff_digest(facts.id), body_digest(request.body))
    return Accept(_message(config, target, facts, route, request, sifted), key, facts.place)


def _facts(request: Request, sifted: Sifted, now: int) -> HandoffFacts:
    if request.target != b"/" or sifted.target is None or sifted.delay is not None:
        raise Refused(BAD_HANDOFF, "A message is handed over to / with Holdfast-Target, and without Holdfast-Delay.")
    try:
        return read_handoff((sifted.handoff or b"").decode("latin-1"), now)
    except ValueError as error:
        raise Refused(BAD_HANDOFF, f"Holdfast-Handoff {error}.") from None


def _route(config: Config, facts: HandoffFacts, target: Target) -> str | None:
    found = config.routes.get(facts.route or "")
    if found is not None and parse_target(found.url).host_key != target.host_key:
        found = None
    if facts.signed and (found is None or found.sign is None):
        raise Refused(
            UNKNOWN_ROUTE,
            f'The message is of the signed route "{facts.route}", and this sidecar has none of that name that signs '
            "for the same host; add it to the config here.",
        )
    return facts.route if found is not None else None


def _message(
    config: Config, target: Target, facts: HandoffFacts, route: str | None, request: Request, sifted: Sifted
) -> Message:
    return Message(
        facts.id,
        lane_of(target, config.circuit),
        target.host_key,
        target.scheme,
        target.authority,
        target.path,
        request.method,
        tuple(sifted.travelling),
        request.body,
        facts.accepted_at,
        facts.place.born,
        route,
        facts.signed,
    )
