"""What the config only names is read at start: every fault at once, and nothing repeated."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import ConfigError, build
from holdfast.config.config_files import MOST
from holdfast.process.credentials import read_credentials

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_config_that_names_nothing_needs_nothing() -> None:
    credentials = read_credentials(build({}), {})
    assert (credentials.token, credentials.proxy_authorization) == (None, None)
    assert credentials.route_keys.signers == {}


def test_every_fault_is_told_at_once_by_its_key(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("hunter2 hunter2\n\x01")
    mapping = {
        "ingest": {"token_file": str(broken)},
        "delivery": {
            "ca_file": str(broken),
            "proxy": "http://proxy.example:3128",
            "proxy_credentials_file": str(broken),
        },
        "routes": {
            "one": {"url": "https://a.example", "sign": {"secret_env": "NOT_SET"}},
            "two": {"url": "https://b.example", "sign": {"secret_file": str(broken)}},
            "three": {"url": "https://c.example", "client_cert_file": str(broken)},
        },
    }
    with pytest.raises(ConfigError) as raised:
        read_credentials(build(mapping), {})
    assert [fault.key for fault in raised.value.faults] == [
        "ingest.token_file",
        "delivery.proxy_credentials_file",
        "routes.one.sign",
        "routes.two.sign",
        "routes.three.client_cert_file",
        "delivery.ca_file",
    ]
    assert "hunter2" not in str(raised.value)


def naming(path: Path) -> dict[str, Any]:
    """A config that has this file everywhere."""
    sign = {"secret_file": str(path)}
    return {
        "ingest": {"token_file": str(path)},
        "delivery": {"ca_file": str(path), "proxy": "http://proxy.example:3128", "proxy_credentials_file": str(path)},
        "routes": {"one": {"url": "https://a.example", "sign": sign, "client_cert_file": str(path)}},
    }


def test_what_reading_would_not_come_to_an_end_of_is_refused(tmp_path: Path) -> None:
    """A reload reads them on the loop."""
    pipe, huge = tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe)
    huge.touch()
    os.truncate(huge, MOST + 1)
    for path, why in (
        (pipe, "it is not a regular file"),
        (Path("/dev/zero"), "it is not a regular file"),
        (huge, "it is larger than 4 MiB"),
    ):
        with pytest.raises(ConfigError) as raised:
            read_credentials(build(naming(path)), {})
        assert [fault.problem for fault in raised.value.faults] == [f"{path} can't be read: {why}"] * 5


def test_what_was_read(tmp_path: Path) -> None:
    token, login = tmp_path / "token", tmp_path / "login"
    token.write_text("let-me-in\n")
    login.write_text("Aladdin:open sesame\n")
    mapping = {
        "ingest": {"token_file": str(token)},
        "delivery": {"proxy": "http://proxy.example:3128", "proxy_credentials_file": str(login)},
        "routes": {"one": {"url": "https://a.example", "sign": {"secret_env": "SECRET"}}},
    }
    credentials = read_credentials(build(mapping), {"SECRET": SECRET})
    assert credentials.token == b"let-me-in"
    assert credentials.proxy_authorization == b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert list(credentials.route_keys.signers) == ["one"]
    for secret in ("let-me-in", "QWxhZGRpb", "MfKQ9r8G"):
        assert secret not in repr(credentials) + repr(credentials.route_keys)


@pytest.mark.parametrize("text", ["", "nobody", ":password", "a:b\nc:d"])
def test_what_is_no_login(tmp_path: Path, text: str) -> None:
    login = tmp_path / "login"
    login.write_text(text)
    delivery = {"proxy": "http://proxy.example:3128", "proxy_credentials_file": str(login)}
    with pytest.raises(ConfigError, match="does not hold one line with user:password"):
        read_credentials(build({"delivery": delivery}), {})
