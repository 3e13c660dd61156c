"""A message that another holdfast hands over. It keeps its id, its age and its place in the schedule.

The request has the method, headers and body of the message, `Holdfast-Target` and `Holdfast-Handoff`, whose grammar is
in `core/handoff_header.py`. It needs the token: a client that sets ages and ids could make messages expire.

The config of this side applies. A route of the same name to the same host becomes the message's route, with its time
limit, signature and exemption. Without such a route the message is judged as if its URL had been sent by prefix. A
message of a signed route is accepted only if that route signs here too.
"""

from collections.abc import Callable

from holdfast.config import Config
from holdfast.core.handoff_header import HandoffFacts, read_handoff
from holdfast.core.idempotency import body_digest, handoff_digest
from holdfast.core.message import Message
from holdfast.core.target import Target, lane_of
from holdfast.http.request_response import Request
from holdfast.ingest.headers import SplitHeaders
from holdfast.ingest.refusals import BAD_HANDOFF, UNKNOWN_ROUTE, Refused
from holdfast.ingest.target_forms import parse_target
from holdfast.store.port import Accept, IdempotencyKey


def accept_from_handoff(
    config: Config, check_egress: Callable[[str, int, bool], None], request: Request, headers: SplitHeaders, now: int
) -> Accept:
    """Returns the operation that stores the message. Raises Refused."""
    facts = _read_facts(request, headers, now)
    target = parse_target(headers.target or b"")
    route = _find_route(config, facts, target)
    check_egress(target.host, target.port, route is not None)
    message = Message(
        facts.id,
        lane_of(target, config.circuit),
        target.host_key,
        target.scheme,
        target.authority,
        target.path,
        request.method,
        tuple(headers.forwarded),
        request.body,
        facts.accepted_at,
        facts.place.born,
        route,
        facts.signed,
    )
    key = IdempotencyKey(handoff_digest(facts.id), body_digest(request.body))
    return Accept(message, key, facts.place)


def _read_facts(request: Request, headers: SplitHeaders, now: int) -> HandoffFacts:
    if request.target != b"/" or headers.target is None or headers.delay is not None:
        raise Refused(BAD_HANDOFF, "A message is handed over to / with Holdfast-Target, and without Holdfast-Delay.")
    try:
        return read_handoff((headers.handoff or b"").decode("latin-1"), now)
    except ValueError as error:
        raise Refused(BAD_HANDOFF, f"Holdfast-Handoff {error}.") from None


def _find_route(config: Config, facts: HandoffFacts, target: Target) -> str | None:
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
