"""The values that each key takes and refuses."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Address, ConfigError, SignSettings, build
from tests.config.config_builders import WITH_TOKEN, faults_of, make, nest, route


def value_of(dotted: str, value: object) -> Any:
    section, name = dotted.split(".")
    return getattr(getattr(make({dotted: value}), section), name)


@pytest.mark.parametrize(
    ("dotted", "value", "result"),
    [
        ("listen.ingest", "[::1]:8800", Address("::1", 8800)),
        ("listen.ingest", "localhost:0", Address("localhost", 0)),
        ("listen.status", "0.0.0.0:65535", Address("0.0.0.0", 65535)),
        ("listen.probe", "0.0.0.0:8802", Address("0.0.0.0", 8802)),
        ("listen.probe", "", None),
        ("listen.control_group", "", None),
        ("store.max_size", "8MiB", 8 * 2**20),
        ("store.host_share", 1, 1.0),
        ("ingest.ack_status", 200, 200),
        ("ingest.hosts", ["Holdfast", "[::1]", "10.0.0.1", "holdfast"], ("holdfast", "::1", "10.0.0.1")),
        ("ingest.proxy_hosts", ["*", "*.a.example", "my_service"], ("*", "*.a.example", "my_service")),
        ("ingest.proxy_hosts", ["*.Straße.example", "XN--N3H.example"], ("*.xn--strae-oqa.example", "xn--n3h.example")),
        ("egress.deny", ["*.βόλος.example", "Local_Host"], ("*.xn--nxasmm1c.example", "local_host")),
        ("ingest.max_delay", "0s", 0),
        ("retry.base", "1ms", 1),
        ("retry.max_retries", 0, 0),
        ("retry.max_retries", 20, 20),
        ("retry.jitter", 10, 10.0),
        ("circuit.window", "61ms", 61),
        ("circuit.failure_rate", 0, 0.0),
        ("circuit.failure_rate", 1.0, 1.0),
        ("circuit.freeze_at", 0, 0),
        ("delivery.per_host", 1, 1),
        ("delivery.first_attempts", 16, 16),
        ("delivery.retries", 4, 4),
        ("delivery.rate_per_host", 0.5, 0.5),
        ("delivery.user_agent", "shop/1 (x)", "shop/1 (x)"),
        ("egress.allow_ports", [], ()),
        ("egress.allow_ports", [443, "*"], None),
        (
            "egress.allow",
            ["10.0.0.0/8", "FD00::/8", "10.1.2.3", "host"],
            ("10.0.0.0/8", "fd00::/8", "10.1.2.3", "host"),
        ),
    ],
)
def test_accepted_values(dotted: str, value: object, result: object) -> None:
    read = value_of(dotted, value)
    assert read == result
    assert type(read) is type(result)


BAD: list[tuple[str, object]] = []
BAD += [("listen.ingest", value) for value in ["", "8800", ":8800", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536"]]
BAD += [("listen.ingest", value) for value in ["::1:8800", "[::1]", "[::1%1]:1", "127.1:8800", "0x7f.1:80", 8800]]
BAD += [("listen.ingest", value) for value in ["[localhost]:80", "a b:80", "127.0.0.1:+1", "127.0.0.1:٣", True, None]]
BAD += [("listen.probe", value) for value in ["8802", "0.0.0.0", 8802, True, None]]
BAD += [("listen.control_group", value) for value in ["a b", "-a", "a/b", "a\n", 5, None]]
BAD += [("store.max_size", value) for value in ["8388607B", "4 GiB", "4GB", 4096, "", True, ["4GiB"]]]
BAD += [("store.host_share", value) for value in [0, 0.0, 1.01, -0.5, "0.5", True, float("nan"), float("inf")]]
BAD += [("ingest.max_headers", value) for value in [0, -1, 1.0, "100", True, None]]
BAD += [("ingest.max_head", "1023B"), ("ingest.max_body", "0B"), ("ingest.head_timeout", "0s")]
BAD += [("ingest.ack_status", value) for value in [203, 202.0, "202", True]]
BAD += [("ingest.hosts", value) for value in ["holdfast", ["*"], ["a:80"], [""], [8800], ["a..b"], ["a."], ["-a"]]]
BAD += [
    ("egress.deny", [name])
    for name in ["a.", "127。0。0。1", "１２７.0.0.1", "xn--a", "*.xn--a", "ｅ", "\u212a", "0x7f.1", "a..b"]
]
BAD += [("ingest.proxy_hosts", value) for value in [["*a"], ["*."], ["a.*"], ["*.10.0.0.1"], ["**"], ["http://a"]]]
BAD += [("ingest.token_file", value) for value in [1, "a\0b", False]]
BAD += [("retry.base", value) for value in ["0s", "5 parsecs", 84800, 0, 84.8, True, "", "-1s", [], {}]]
BAD += [("retry.base", datetime.date(2026, 1, 1)), ("retry.expire_after", 5), ("retry.expire_after", "0s")]
BAD += [("retry.max_retries", value) for value in [-1, 21, 11.0, 10**400]]
BAD += [("retry.jitter", value) for value in [-0.1, 10.1, "0", float("nan"), 10**400]]
BAD += [("circuit.scope", value) for value in ["path", "Host", "", 1]]
BAD += [("circuit.window", "59ms"), ("circuit.failure_rate", 1.1), ("circuit.disable_after", -1)]
BAD += [("circuit.probe_every", "0s"), ("circuit.freeze_silence", "0s"), ("circuit.url_hosts", ["a/b"])]
BAD += [("delivery.first_attempts", 3), ("delivery.retries", 3), ("delivery.per_host", 0)]
BAD += [("delivery.rate_per_host", value) for value in [-1, float("inf"), True]]
BAD += [("delivery.user_agent", value) for value in ["a\r\nb: c", " a", "ä", 1]]
BAD += [("egress.allow_ports", value) for value in [443, "*", [0], [65536], ["443"], [True], [443.0]]]
BAD += [
    ("egress.allow", value) for value in [["10.0.0.1/8"], ["10.0.0.0/33"], ["*"], ["127.1"], ["a/b"], ["fe80::1%1"]]
]
BAD += [("egress.deny", value) for value in [["2130706433"], ["0x7f000001"], [None], ["10.0.0.0/8 "]]]
BAD += [("egress.allow_loopback", value) for value in [1, "true", None]]
BAD += [("retention.dead", "0s"), ("log.format", "xml"), ("log.level", "warn"), ("log.level", "INFO")]


@pytest.mark.parametrize(("dotted", "value"), BAD)
def test_refused(dotted: str, value: object) -> None:
    faults = faults_of(nest({dotted: value}))
    assert {fault.key for fault in faults} == {dotted}
    for fault in faults:
        assert fault.allowed
        assert len(str(fault).splitlines()) == 1


@pytest.mark.parametrize(
    ("dotted", "value", "line"),
    [
        (
            "retry.base",
            "5 parsecs",
            'retry.base: this text is not a duration; allowed: a number with ms, s, m, h or d, such as "84800ms"',
        ),
        (
            "retry.base",
            84800,
            'retry.base: 84800 is a number without a unit; allowed: a number with ms, s, m, h or d, such as "84800ms"',
        ),
        ("store.max_size", "1MiB", 'store.max_size: "1MiB" is too small; allowed: at least "8MiB"'),
        (
            "ingest.ack_status",
            500,
            "ingest.ack_status: 500 is not one of the choices; allowed: 200, 201, 202 or 204",
        ),
        (
            "retry.max_retries",
            21,
            "retry.max_retries: 21 is out of range; allowed: a whole number from 0 to 20",
        ),
        ("store.host_share", 0, "store.host_share: 0 is out of range; allowed: a number above 0 to 1"),
        (
            "egress.allow",
            ["10.0.0.1/8"],
            'egress.allow: item 1: "10.0.0.1/8" has address bits beyond its prefix; '
            'allowed: "10.0.0.0/8", or a single address',
        ),
    ],
)
def test_faults_read_well(dotted: str, value: object, line: str) -> None:
    assert [str(fault) for fault in faults_of(nest({dotted: value}))] == [line]


def test_every_fault_is_reported_at_once() -> None:
    mapping = tomllib.loads("""
        [nonsense]
        x = 1
        [listen]
        ingest = "0.0.0.0:8800"
        [retry]
        base = "5 parsecs"
        bse = 1
        [egress]
        allow = ["10.0.0.1/8", "ok.example", "127.1"]
        allow_ports = [0, 443, 70000]
        [delivery]
        per_host = 500
        [process]
        split = 1
        watch_config = "yes"
        [store]
        spool = true
        [routes.Bad]
        url = "https://a.example"
        [routes.b]
        headers = { host = "x", "a b" = "y" }
    """)
    assert sorted(fault.key for fault in faults_of(mapping)) == sorted(
        [
            *("nonsense", "listen.ingest", "retry.base", "retry.bse", "egress.allow", "egress.allow"),
            *("egress.allow_ports", "egress.allow_ports", "delivery.per_host", "process.split", "process.watch_config"),
            "store.spool",
            *("routes.Bad", "routes.b.url", "routes.b.headers", "routes.b.headers"),
        ]
    )


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://gateway.hooks.svc:8800", Address("gateway.hooks.svc", 8800)),
        ("HTTP://[fd00::1]:8800/", Address("fd00::1", 8800)),
        ("", None),
    ],
)
def test_handoff_addresses(url: str, address: Address | None) -> None:
    assert make({**WITH_TOKEN, "drain.handoff": url}).drain.handoff == address


@pytest.mark.parametrize(
    "url",
    [
        "gateway:8800",
        "https://gateway:8800",
        "http://gateway",
        "http://gateway:0",
        "http://gateway:8800/x",
        "http://a@b:1",
    ],
)
def test_bad_handoff_addresses(url: str) -> None:
    (fault,) = faults_of(nest({**WITH_TOKEN, "drain.handoff": url}))
    assert fault.key == "drain.handoff"
    assert "http://host:port" in fault.allowed


def test_no_place_for_the_store() -> None:
    with pytest.raises(ConfigError) as caught:
        build({}, uid=1000)
    assert [fault.key for fault in caught.value.faults] == ["store.path"]


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/in",
        "http://127.0.0.1:9000",
        "https://[::1]:8443/a?b=c",
        "http://my_service/x%20y",
    ],
)
def test_route_urls(url: str) -> None:
    assert build(route(url=url)).routes["b"].url == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "hooks.example.com/in",
            "ftp://a.example",
            "https://",
            "https:///in",
            "https://u:secret@a.example",
        ),
        *(
            "https://a.example/#secret",
            "https://a.example/#",
            "https://a.example:0/",
            "https://a.example:99999/",
        ),
        *(
            "https://a.example/a b",
            "https://a.example/\nsecret",
            "https://ä.example/",
            "https://0x7f.1/secret",
        ),
        *("https://[::1/secret", "https://127.1/", "https://a.example\\@b.example/", "//a.example", 5),
    ],
)
def test_bad_route_urls_are_refused_without_repeating_them(url: object) -> None:
    (fault,) = faults_of(route(url=url))
    assert fault.key == "routes.b.url"
    assert "secret" not in str(fault)


def test_a_route_needs_a_url() -> None:
    assert [str(fault) for fault in faults_of({"routes": {"b": {}}})] == [
        "routes.b.url: is missing; every route needs one"
    ]


def test_route_headers_timeout_and_rate() -> None:
    b = build(route(headers={"X-Team": "b", "x-empty": ""}, timeout="10s", rate=3)).routes["b"]
    assert (b.headers, b.timeout, b.rate) == ((("X-Team", "b"), ("x-empty", "")), 10_000, 3.0)
    assert build(route(timeout="")).routes["b"].timeout is None


@pytest.mark.parametrize(
    "headers",
    [{name: "secret"} for name in ["Host", "content-length", "Transfer-Encoding", "connection", "TE", "upgrade"]]
    + [{name: "secret"} for name in ["Holdfast-Delay", "proxy-authorization", "webhook-id", "", "a b", "a:", "ä"]]
    + [{"x": value} for value in ["a\r\nsecret: 1", "a\nb", "a\0b", " a", "a ", "ä", "\x7f", 5, None, ["a"]]]
    + [{"x-a": "1", "X-A": "2"}, "x: y", ["x"]],
)
def test_bad_route_headers_are_refused_without_repeating_their_values(headers: object) -> None:
    (fault,) = faults_of(route(headers=headers))
    assert fault.key == "routes.b.headers"
    assert "secret" not in str(fault)


@pytest.mark.parametrize("keys", [{"timeout": "0s"}, {"timeout": 10}, {"rate": -1}, {"rate": "3"}])
def test_bad_route_limits(keys: dict[str, object]) -> None:
    (fault,) = faults_of(route(**keys))
    assert fault.key == f"routes.b.{next(iter(keys))}"


@pytest.mark.parametrize(("address", "text"), [(Address("::1", 80), "[::1]:80"), (Address("a", 0), "a:0")])
def test_addresses_as_text(address: Address, text: str) -> None:
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("http://proxy.internal:3128", "proxy.internal", 3128),
        ("http://10.0.0.1:8080/", "10.0.0.1", 8080),
        ("HTTP://[fd00::1]:3128", "fd00::1", 3128),
    ],
)
def test_a_forward_proxy(text: str, host: str, port: int) -> None:
    assert value_of("delivery.proxy", text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("https://proxy:3128", "is not the URL of an HTTP proxy"),
        ("proxy:3128", "is not the URL of an HTTP proxy"),
        ("http://proxy", "has no valid host and port"),
        ("http://proxy:0", "has port 0"),
        ("http://proxy:3128/path", "is not the URL of an HTTP proxy"),
        ("http://0x7f.1:3128", "has no valid host and port"),
    ],
)
def test_bad_forward_proxies(text: str, problem: str) -> None:
    (fault,) = faults_of(nest({"delivery.proxy": text}))
    assert problem in fault.problem


def test_credentials_in_a_proxy_url_are_refused_and_not_repeated() -> None:
    (fault,) = faults_of(nest({"delivery.proxy": "http://user:hunter2@proxy:3128"}))
    assert "proxy_credentials_file" in fault.problem
    assert "hunter2" not in str(fault)


def test_a_signed_route() -> None:
    table = {"scheme": "standard-webhooks", "secret_file": "keys/billing"}
    signed = build(route(sign=table), cwd=Path("/etc/holdfast")).routes["b"].sign
    assert signed == SignSettings("standard-webhooks", Path("/etc/holdfast/keys/billing"), None)
    assert build(route(sign={"secret_env": "BILLING_SECRET"})).routes["b"].sign == SignSettings(
        "standard-webhooks", None, "BILLING_SECRET"
    )
    environ = {"HOLDFAST_ROUTES__B__SIGN": '{ secret_env = "X" }', "HOLDFAST_ROUTES__B__URL": "https://a.example"}
    assert build({}, environ=environ).routes["b"].sign == SignSettings("standard-webhooks", None, "X")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("yes", "is not a table"),
        ({"scheme": "hmac", "secret_env": "X"}, "names an unknown scheme"),
        ({"scheme": "standard-webhooks"}, "names no secret_file or secret_env"),
        ({"secret_file": "/s", "secret_env": "X"}, "names both"),
        ({"secret_env": "A B"}, "is not the name of an environment variable"),
        ({"secret_env": 1}, "is a number"),
        ({"secret": "whsec_abc"}, "has another key than scheme, secret_file and secret_env"),
    ],
)
def test_bad_signing_tables(table: object, problem: str) -> None:
    (fault,) = faults_of(route(sign=table))
    assert (fault.key, problem in fault.problem) == ("routes.b.sign", True)
