"""Messages that another holdfast hands over."""

from typing import Any

import pytest

from holdfast.core.handoff_header import write_handoff
from holdfast.core.message import Entry, Message, Place, Standing, id_text
from holdfast.store.embedded.tables import Table
from tests.ingest.gateway import NOW, Answer, Gateway, gateway

TOKEN = b"s3cret"
WITH_TOKEN = ("Holdfast-Token", "s3cret")
ID = (NOW - 5_000 << 80).to_bytes(16, "big")
WAITING = Place(Standing.WAITING, NOW - 5_000)
SECRET = {"scheme": "standard-webhooks", "secret_env": "SECRET"}


def facts(place: Place = WAITING, route: str | None = None, *, signed: bool = False) -> str:
    message = Message(ID, "", "", "", "", b"", "", (), b"", NOW - 5_000, NOW - 5_000, route, signed)
    return write_handoff(Entry(message, place))


async def hand_over(
    it: Gateway, value: str, *headers: tuple[str, str], to: str = "https://api.example.com/hook?x=1", **of: Any
) -> Answer:
    said = [("Holdfast-Target", to), ("Holdfast-Handoff", value), *headers]
    return await it.post("/", said if of.pop("bare", False) else [WITH_TOKEN, *said], **of)


async def test_a_message_keeps_its_id_and_its_place() -> None:
    place = Place(Standing.RETRY, NOW - 5_000, NOW + 60_000, 5, 7, True)
    async with gateway(token=TOKEN) as it:
        answer = await hand_over(it, facts(place), ("X-Own", "1"), ("Idempotency-Key", "app"), method="PUT")
        assert (answer.status, answer.header("holdfast-message-id")) == (202, id_text(ID))
        message = it.message
        assert (message.id, message.method, message.target) == (ID, "PUT", "https://api.example.com/hook?x=1")
        assert (message.accepted_at, message.born, message.body) == (NOW - 5_000, NOW - 5_000, b"{}")
        assert message.headers == ((b"x-own", b"1"), (b"idempotency-key", b"app"))
        with it.engine.read() as transaction:
            assert transaction.get(Table.PLACES, ID) is not None
            assert transaction.count(Table.RETRY, b"api.example.com:443") == 1


async def test_a_second_handoff_is_a_duplicate_also_with_a_key_of_the_app() -> None:
    async with gateway(token=TOKEN) as it:
        own = ("Idempotency-Key", "app")
        assert (await hand_over(it, facts(), own)).header("holdfast-duplicate") is None
        again = await hand_over(it, facts(), own)
        assert (again.status, again.header("holdfast-duplicate")) == (202, "true")
        assert again.header("holdfast-message-id") == id_text(ID)
        assert (await hand_over(it, facts(), body=b"another")).status == 422
        fresh = await it.post("/https://api.example.com/hook?x=1", [WITH_TOKEN, own])
        assert fresh.header("holdfast-duplicate") is None
        assert len(it.messages) == 2


async def test_without_a_token_here_a_handoff_is_refused() -> None:
    async with gateway() as it:
        answer = await hand_over(it, facts())
        assert (answer.status, answer.slug) == (403, "handoff-needs-token")
        assert "ingest.token_file" in answer.json["detail"]
        assert it.refusals == ["handoff-needs-token"]


@pytest.mark.parametrize("headers", [[], [("Holdfast-Token", "wrong")], [("Proxy-Authorization", "Bearer s3cret")]])
async def test_with_another_token_a_handoff_is_refused(headers: list[tuple[str, str]]) -> None:
    async with gateway(token=TOKEN) as it:
        answer = await hand_over(it, facts(), *headers, bare=True)
        assert (answer.status, answer.slug) == (403, "wrong-token")


async def test_headers_of_a_message_may_look_like_those_of_a_browser() -> None:
    async with gateway(token=TOKEN) as it:
        assert (await hand_over(it, facts(), ("Origin", "https://app.example"))).status == 202
        assert it.message.headers == ((b"origin", b"https://app.example"),)


@pytest.mark.parametrize(
    "headers",
    [
        [("Holdfast-Handoff", "yes")],
        [("Holdfast-Handoff", facts()), ("Holdfast-Handoff", facts().replace("retry=0", "retry=1"))],
        [("Holdfast-Handoff", facts()), ("Holdfast-Delay", "1s")],
    ],
)
async def test_a_malformed_handoff_is_400_with_the_reason(headers: list[tuple[str, str]]) -> None:
    async with gateway(token=TOKEN) as it:
        answer = await it.post("/", [WITH_TOKEN, ("Holdfast-Target", "https://api.example.com/"), *headers])
        assert (answer.status, answer.slug) == (400, "bad-handoff")
        assert not it.messages


@pytest.mark.parametrize("target", ["/", "/https://api.example.com/", "/to/billing"])
async def test_the_target_is_named_in_its_header_only(target: str) -> None:
    async with gateway({"routes": {"billing": {"url": "https://api.example.com/"}}}, token=TOKEN) as it:
        headers = [WITH_TOKEN, ("Holdfast-Handoff", facts())]
        assert (await it.post(target, headers)).slug == "bad-handoff"


async def test_a_handoff_by_get_is_refused() -> None:
    async with gateway(token=TOKEN) as it:
        assert (await hand_over(it, facts(), method="GET")).status == 405


# -- the config of this side decides -----------------------------------------------------------------------------------

PRIVATE = "http://10.0.0.7:9000/in/x"


@pytest.mark.parametrize(
    ("url", "route", "status"),
    [
        ("http://10.0.0.7:9000/in", "billing", 202),
        ("http://10.0.0.7:9000/in", "other", 403),
        ("http://10.0.0.7:9000/in", None, 403),
        ("http://10.0.0.8:9000/in", "billing", 403),
    ],
)
async def test_a_route_of_the_same_name_opens_its_own_host(url: str, route: str | None, status: int) -> None:
    async with gateway({"routes": {"billing": {"url": url}}}, token=TOKEN) as it:
        answer = await hand_over(it, facts(route=route), to=PRIVATE)
        assert answer.status == status
        if status == 202:
            assert it.message.route == "billing"
        else:
            assert answer.slug == "egress-denied"


@pytest.mark.parametrize("routes", [{}, {"billing": {"url": "https://other.example.com/"}}])
async def test_a_message_of_an_unknown_route_is_accepted_without_a_route(routes: dict[str, Any]) -> None:
    async with gateway({"routes": routes}, token=TOKEN) as it:
        assert (await hand_over(it, facts(route="billing"))).status == 202
        assert (it.message.route, it.message.signed) == (None, False)


@pytest.mark.parametrize(("sign", "status"), [(SECRET, 202), (None, 404)])
async def test_a_signed_message_is_accepted_only_if_its_route_signs_here(sign: object, status: int) -> None:
    route = {"url": "https://api.example.com/", **({"sign": sign} if sign else {})}
    async with gateway({"routes": {"billing": route}}, token=TOKEN) as it:
        assert (await hand_over(it, facts(route="billing", signed=True))).status == status
        assert (await hand_over(it, facts(route="gone", signed=True))).slug == "unknown-route"
        elsewhere = await hand_over(it, facts(route="billing", signed=True), to="https://other.example.com/")
        assert elsewhere.slug == "unknown-route"
        assert [(message.route, message.signed) for message in it.messages] == [("billing", True)] * (status == 202)
