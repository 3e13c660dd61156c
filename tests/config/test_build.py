"""Flags win over the environment, the environment over the file, the file over defaults; unknown names; bad files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.config import Config, ConfigError, build, load


def faults_of(**arguments: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(arguments.pop("mapping", {}), **arguments)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def test_each_layer_wins_over_the_one_below() -> None:
    mapping = {"delivery": {"per_host": 2, "retries": 5, "first_attempts": 50}}
    environ = {"HOLDFAST_DELIVERY__PER_HOST": "3", "HOLDFAST_DELIVERY__RETRIES": "6"}
    delivery = build(mapping, environ=environ, flags={"delivery.per_host": "4"}).delivery
    assert (delivery.per_host, delivery.retries, delivery.first_attempts) == (4, 6, 50)
    assert delivery.timeout == 30_000


def test_a_bad_value_that_a_higher_layer_replaces_does_no_harm() -> None:
    config = build({"retry": {"base": 5}}, environ={"HOLDFAST_RETRY__BASE": "5s"})
    assert config.retry.base == 5_000


@pytest.mark.parametrize(
    ("variable", "text", "dotted", "value"),
    [
        ("HOLDFAST_STORE__HOST_SHARE", "0.25", "store.host_share", 0.25),
        ("HOLDFAST_STORE__HOST_SHARE", "1", "store.host_share", 1.0),
        ("HOLDFAST_INGEST__ACK_STATUS", "204", "ingest.ack_status", 204),
        ("HOLDFAST_INGEST__TOKEN_FILE", "/t", "ingest.token_file", Path("/t")),
        ("HOLDFAST_EGRESS__ALLOW_LOOPBACK", "true", "egress.allow_loopback", True),
        ("HOLDFAST_EGRESS__ALLOW_PORTS", "443, 8443", "egress.allow_ports", (443, 8443)),
        ("HOLDFAST_EGRESS__ALLOW_PORTS", "[443, 8443]", "egress.allow_ports", (443, 8443)),
        ("HOLDFAST_EGRESS__ALLOW_PORTS", "*", "egress.allow_ports", None),
        ("HOLDFAST_EGRESS__ALLOW_PORTS", '["*"]', "egress.allow_ports", None),
        ("HOLDFAST_EGRESS__ALLOW_PORTS", "", "egress.allow_ports", ()),
        (
            "HOLDFAST_EGRESS__ALLOW",
            "10.0.0.0/8,*.Example.com",
            "egress.allow",
            ("10.0.0.0/8", "*.example.com"),
        ),
        ("HOLDFAST_EGRESS__DENY", '["a.example",\n "b.example"]', "egress.deny", ("a.example", "b.example")),
        ("HOLDFAST_LOG__LEVEL", "debug", "log.level", "debug"),
        ("HOLDFAST_RETRY__EXPIRE_AFTER", "", "retry.expire_after", 173_585_600),
    ],
)
def test_environment_values(variable: str, text: str, dotted: str, value: object) -> None:
    section, name = dotted.split(".")
    for config in (build({}, environ={variable: text}), build({}, flags={dotted: text})):
        assert getattr(getattr(config, section), name) == value


def test_routes_from_the_environment() -> None:
    environ = {
        "HOLDFAST_ROUTES__BILLING__URL": "https://new.example/in",
        "HOLDFAST_ROUTES__A__B__URL": "http://127.0.0.1:9000",
        "HOLDFAST_ROUTES__A__B__HEADERS": '{ x-team = "b" }',
        "HOLDFAST_ROUTES__A__B__RATE": "2.5",
    }
    mapping = {"routes": {"billing": {"url": "https://old.example/in", "timeout": "5s"}}}
    routes = build(mapping, environ=environ, flags={"routes.third.url": "https://c.example"}).routes
    assert list(routes) == ["billing", "a__b", "third"]
    assert (routes["billing"].url, routes["billing"].timeout) == ("https://new.example/in", 5_000)
    assert (routes["a__b"].headers, routes["a__b"].rate) == ((("x-team", "b"),), 2.5)


def test_variables_that_kubernetes_injects_are_ignored() -> None:
    environ = {
        "HOLDFAST_PORT": "tcp://10.0.0.7:8800",
        "HOLDFAST_SERVICE_HOST": "10.0.0.7",
        "HOLDFAST_SERVICE_PORT_INGEST": "8800",
        "HOLDFAST_PORT_8800_TCP": "tcp://10.0.0.7:8800",
        "HOLDFAST_PORT_8800_TCP_ADDR": "10.0.0.7",
        "MY_HOLDFAST_RETRY__BASE": "1s",
        "PATH": "/bin",
    }
    assert build({}, environ=environ) == build({})


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("HOLDFAST_DELIVERY__PERHOST", '; did you mean "HOLDFAST_DELIVERY__PER_HOST"?'),
        ("HOLDFAST_DELIVRY__PER_HOST", '; did you mean "HOLDFAST_DELIVERY__PER_HOST"?'),
        ("HOLDFAST__DELIVERY__PER_HOST", '; did you mean "HOLDFAST_DELIVERY__PER_HOST"?'),
        ("HOLDFAST_CONFIG__ZZZZZZZZZZZZZZZZ", ""),
        ("HOLDFAST_ROUTES__URL", '; did you mean "HOLDFAST_ROUTES__NAME__URL"?'),
        ("HOLDFAST_ROUTES__BILLING__ULR", '; did you mean "HOLDFAST_ROUTES__BILLING__URL"?'),
        ("HOLDFAST_ROUTES__BILLING__ZZZZZZZZZZZZ", ""),
    ],
)
def test_a_double_underscore_that_names_no_key_is_a_fault(variable: str, hint: str) -> None:
    assert faults_of(environ={variable: "8"}) == [f"{variable}: there is no such key{hint}"]


def test_unknown_sections_keys_and_flags_suggest_the_nearest() -> None:
    mapping = {
        "retyr": {"base": "1s"},
        "retry": {"bse": "1s", "per_host": 1},
        "routes": {"b": {"url": "https://b.example", "header": {}}},
    }
    assert faults_of(mapping=mapping, flags={"store.paht": "/x"}) == [
        'retyr: there is no such section; did you mean "retry"?',
        'retry.bse: there is no such key; did you mean "retry.base"?',
        'retry.per_host: there is no such key; did you mean "delivery.per_host"?',
        'routes.b.header: there is no such key; did you mean "routes.b.headers"?',
        'store.paht: there is no such key; did you mean "store.path"?',
    ]


def test_a_name_with_line_breaks_stays_on_one_line() -> None:
    assert faults_of(mapping={"zz": {}, "store": {"a\nb": 1}}) == [
        "zz: there is no such section",
        '"store.a\\nb": there is no such key',
    ]


@pytest.mark.parametrize("name", ["Billing", "", "-a", "_a", "a.b", "a b", "ä", "a\n"])
def test_bad_route_names(name: str) -> None:
    (line,) = faults_of(mapping={"routes": {name: {"url": "https://b.example"}}})
    assert "is not a route name; allowed: small letters" in line


def test_sections_and_routes_must_be_tables() -> None:
    assert faults_of(mapping={"retry": 5, "routes": {"b": "https://b.example"}}) == [
        "retry: 5 is not a section; allowed: [retry] with its keys",
        "routes.b: this text is not a route; allowed: [routes.NAME] with a url",
    ]


def test_a_bad_environment_value_names_its_variable() -> None:
    assert faults_of(environ={"HOLDFAST_DELIVERY__PER_HOST": "many"}) == [
        "delivery.per_host: this text is not a whole number (from HOLDFAST_DELIVERY__PER_HOST);"
        " allowed: a whole number from 1 up"
    ]


def test_environment_text_cannot_smuggle_in_a_second_key() -> None:
    (line,) = faults_of(environ={"HOLDFAST_DELIVERY__PER_HOST": "8\nx = 1"})
    assert line.startswith("delivery.per_host: this text is not a whole number")


def load_error(path: Path | None, environ: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    return str(caught.value).splitlines()


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_load_reads_the_named_file_else_the_one_of_the_environment(tmp_path: Path) -> None:
    one = write(tmp_path / "one.toml", '[retry]\nbase = "1s"')
    two = write(tmp_path / "two.toml", '[retry]\nbase = "2s"')
    environ = {"HOLDFAST_CONFIG": str(two), "HOME": str(tmp_path)}
    assert load(one, environ).retry.base == 1_000
    assert load(None, environ).retry.base == 2_000
    assert load(None, {**environ, "HOLDFAST_CONFIG": ""}).retry.base == 84_800
    assert load(one, environ, {"retry.base": "3s"}).retry.base == 3_000


def test_load_uses_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    config: Config = load(None, {"HOME": "/home/u"}, {"ingest.token_file": "token"})
    assert config.store.path == Path("/home/u/.local/state/holdfast")
    assert config.ingest.token_file == tmp_path / "token"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('[retry]\nbase "1s"\n', 2),
        ("[retry]\n\n\nbase = \n", 4),
        ('[retry]\nbase = """open', 2),
        ("[retry]\n[retry]\n", 2),
        (b"[retry]\n# gr\xfc\xdfe\n", 2),
    ],
)
def test_a_malformed_file_is_one_fault_with_its_line(tmp_path: Path, content: str | bytes, line: int) -> None:
    path = write(tmp_path / "bad.toml", content)
    (fault,) = load_error(path, {})
    assert fault.startswith(f"{path}:{line}: is not ")


def test_a_file_that_is_nested_too_deep_is_one_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "deep.toml", "x = " + "[" * 100_000)
    assert load_error(path, {}) == [f"{path}: is nested too deep; allowed: TOML"]
    (line,) = faults_of(environ={"HOLDFAST_EGRESS__ALLOW": "[" * 100_000})
    assert line.startswith("egress.allow: this text is not a list")


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert load_error(path, {}) == [f"{path}: can't be read: No such file or directory"]
    assert load_error(None, {"HOLDFAST_CONFIG": str(tmp_path)}) == [f"{tmp_path}: can't be read: Is a directory"]
