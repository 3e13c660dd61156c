"""The defaults are those of SPEC.md, and the config tree, the keys and the example file agree."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.config import Address, Config, RouteSettings, SignSettings, build, default_store_path, load
from holdfast.config.keys import ROUTE, SECTIONS

REPOSITORY = Path(__file__).parents[2]
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000

DEFAULTS: dict[str, dict[str, object]] = {
    "listen": {
        "ingest": Address("127.0.0.1", 8800),
        "status": Address("127.0.0.1", 8801),
        "probe": None,
        "control": Path("/var/lib/holdfast/control.sock"),
        "control_group": None,
    },
    "store": {
        "path": Path("/var/lib/holdfast"),
        "max_size": 4 * 2**30,
        "host_share": 0.5,
        "url": None,
        "spool": False,
    },
    "ingest": {
        "max_body": 2**20,
        "max_head": 32 * 2**10,
        "max_headers": 100,
        "max_connections": 1024,
        "head_timeout": 10_000,
        "body_timeout": 30_000,
        "idle_timeout": 75_000,
        "ack_status": 202,
        "hosts": (),
        "proxy_hosts": (),
        "upgrade_to_https": (),
        "token_file": None,
        "idempotency": 24 * HOUR,
        "max_delay": 30 * DAY,
    },
    "retry": {
        "base": 84_800,
        "max_retries": 11,
        "expire_after": 48 * HOUR + 13 * MINUTE + 5_600,
        "jitter": 0.0,
        "retry_after_limit": 24 * HOUR,
    },
    "circuit": {
        "scope": "host",
        "url_hosts": (),
        "window": HOUR,
        "min_attempts": 100,
        "failure_rate": 0.70,
        "disable_after": 2000,
        "freeze_after": 2000,
        "freeze_silence": 72 * HOUR,
        "freeze_at": 50_000,
        "probe_every": 10 * MINUTE,
        "forget_after": 7 * DAY,
    },
    "delivery": {
        "timeout": 30_000,
        "first_attempts": 256,
        "retries": 64,
        "per_host": 16,
        "rate_per_host": 0.0,
        "max_answer": 64 * 2**10,
        "user_agent": None,
        "ca_file": None,
        "proxy": None,
        "proxy_credentials_file": None,
        "no_proxy": (),
    },
    "egress": {"allow_ports": (443, 80), "allow": (), "deny": (), "allow_loopback": False},
    "retention": {"delivered": 24 * HOUR, "dead": 30 * DAY},
    "drain": {"timeout": 25_000, "linger": 0, "handoff": None},
    "process": {"split": False, "watch_config": False},
    "log": {"format": "json", "level": "info"},
    "routes": {},
}


def test_no_config_at_all_gives_the_numbers_of_the_spec() -> None:
    assert dataclasses.asdict(build({})) == {
        section: {
            key: dataclasses.asdict(value) if isinstance(value, Address) else value for key, value in keys.items()
        }
        for section, keys in DEFAULTS.items()
    }


def test_every_section_has_a_row_for_each_of_its_fields() -> None:
    assert [field.name for field in dataclasses.fields(Config)] == [*SECTIONS, "routes"]
    for section in SECTIONS.values():
        assert [*section.keys] == [field.name for field in dataclasses.fields(section.make)]  # type: ignore[arg-type]
    assert [*ROUTE] == [field.name for field in dataclasses.fields(RouteSettings)]


def test_config_is_frozen() -> None:
    config = build({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.retry.base = 1  # type: ignore[misc]


def test_example_file_is_the_defaults() -> None:
    mapping = tomllib.loads((REPOSITORY / "config/holdfast.toml").read_text())
    assert build(mapping) == build({})


def test_example_file_names_every_key() -> None:
    text = (REPOSITORY / "config/holdfast.toml").read_text()
    named = {f"{section}.{key}" for section, table in tomllib.loads(text).items() for key in table}
    assert named == {f"{name}.{key}" for name, section in SECTIONS.items() for key in section.keys}


def test_the_route_that_the_example_file_has_in_comments_is_valid_and_whole() -> None:
    text = (REPOSITORY / "config/holdfast.toml").read_text()
    route = text[text.index("# [routes.billing]") :].replace("# ", "", 1).replace("\n# ", "\n")
    mapping = tomllib.loads(route)
    assert build(mapping).routes == {
        "billing": RouteSettings(
            "https://hooks.example.com/in",
            (("x-team", "billing"),),
            SignSettings("standard-webhooks", Path("/run/secrets/billing"), None),
            timeout=None,
            rate=0.0,
            client_cert_file=None,
            client_key_file=None,
        )
    }
    assert set(mapping["routes"]["billing"]) == set(ROUTE)


def test_dev_file_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(REPOSITORY / "config/dev.toml", {})
    assert config.store.path == tmp_path / "var/dev"
    assert config.listen.control == tmp_path / "var/dev/control.sock"
    assert config.egress.allow_ports is None
    assert config.egress.allow_loopback
    assert config.ingest.proxy_hosts == ("*",)
    assert config.routes["example"].url == "http://127.0.0.1:9000/hook"
    assert config.log.format == "text"


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({"STATE_DIRECTORY": "/state/a", "XDG_STATE_HOME": "/xdg"}, 0, "/state/a"),
        ({"STATE_DIRECTORY": "/state/a:/state/b"}, 1000, "/state/a"),
        ({"XDG_STATE_HOME": "/xdg", "HOME": "/home/u"}, 0, "/var/lib/holdfast"),
        ({"XDG_STATE_HOME": "/xdg", "HOME": "/home/u"}, 1000, "/xdg/holdfast"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/u"}, 1000, "/home/u/.local/state/holdfast"),
        ({"HOME": "/home/u"}, 1000, "/home/u/.local/state/holdfast"),
    ],
)
def test_default_store_path(environ: dict[str, str], uid: int, path: str) -> None:
    assert default_store_path(environ, uid) == Path(path)
    assert build({}, environ=environ, uid=uid).store.path == Path(path)


def test_relative_paths_are_resolved_against_the_working_directory() -> None:
    mapping = {
        "store": {"path": "var/../store"},
        "listen": {"control": "run/c.sock"},
        "ingest": {"token_file": "token"},
        "delivery": {"ca_file": "/etc/ca.pem"},
    }
    config = build(mapping, cwd=Path("/srv"))
    assert config.store.path == Path("/srv/store")
    assert config.listen.control == Path("/srv/run/c.sock")
    assert config.ingest.token_file == Path("/srv/token")
    assert config.delivery.ca_file == Path("/etc/ca.pem")


def test_expire_after_follows_the_schedule_unless_set() -> None:
    assert build({"retry": {"base": "1s", "max_retries": 3}}).retry.expire_after == 7_000
    assert build({"retry": {"base": "1s", "expire_after": "1h"}}).retry.expire_after == HOUR


def test_importing_config_loads_neither_the_toml_parser_nor_anything_outside_the_standard_library() -> None:
    code = (
        "import sys; import holdfast.config\n"
        "heavy = {'tomllib', 'difflib', 'json', 'logging', 'socket', 'trio', 'httpx', 'msgpack', 'lmdb'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
