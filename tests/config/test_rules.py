"""The rules between keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import Address, build
from tests.config.config_builders import WITH_TOKEN, faults_of, make, nest, route


def test_per_host_fits_into_first_attempts() -> None:
    assert make({"delivery.per_host": 8, "delivery.first_attempts": 8}).delivery.per_host == 8
    assert [str(fault) for fault in faults_of(nest({"delivery.per_host": 9, "delivery.first_attempts": 8}))] == [
        "delivery.per_host: 9 is more than delivery.first_attempts; allowed: at most 8"
    ]


def test_a_rule_is_skipped_if_one_of_its_keys_is_bad() -> None:
    (fault,) = faults_of(nest({"delivery.per_host": 500, "delivery.first_attempts": "many"}))
    assert fault.key == "delivery.first_attempts"


@pytest.mark.parametrize(
    ("ingest", "status", "clash"),
    [
        ("127.0.0.1:9000", "127.0.0.1:9000", True),
        ("[::1]:9000", "[0:0::1]:9000", True),
        ("127.0.0.1:9000", "0.0.0.0:9000", True),
        ("127.0.0.1:9000", "[::]:9000", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:9000", "127.0.0.2:9000", False),
        ("127.0.0.1:9000", "127.0.0.1:9001", False),
    ],
)
def test_two_listeners_need_two_addresses(ingest: str, status: str, clash: bool) -> None:
    mapping = nest({"listen.ingest": ingest, "listen.status": status})
    if clash:
        (fault,) = faults_of(mapping)
        assert (fault.key, fault.allowed) == ("listen.status", "another port")
    else:
        build(mapping)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "gateway.example"])
def test_ingest_beyond_loopback_needs_a_token(host: str) -> None:
    values: dict[str, object] = {"listen.ingest": f"{host}:8800"}
    (fault,) = faults_of(nest(values))
    assert fault.key == "listen.ingest"
    assert "reachable from other machines" in fault.problem
    assert "ingest.token_file" in fault.allowed
    make({**values, "ingest.token_file": "/run/token"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert make({"listen.ingest": f"{host}:8800"}).ingest.token_file is None


def test_the_schedule_stays_within_a_century() -> None:
    (fault,) = faults_of(nest({"retry.base": "1d", "retry.max_retries": 20}))
    assert fault.key == "retry.max_retries"


def test_linger_fits_into_the_drain() -> None:
    assert make({"drain.linger": "25s"}).drain.linger == 25_000
    (fault,) = faults_of(nest({"drain.linger": "26s"}))
    assert str(fault) == 'drain.linger: "26s" is longer than drain.timeout, which ends it; allowed: at most "25s"'


def test_handing_over_needs_a_token_another_holdfast_and_a_third_of_the_drain() -> None:
    (fault,) = faults_of(nest({"drain.handoff": "http://gateway:8800"}))
    assert fault.key == "drain.handoff"
    assert "ingest.token_file" in fault.allowed
    (fault,) = faults_of(nest({**WITH_TOKEN, "drain.handoff": "http://127.0.0.1:8800"}))
    assert "holdfast itself" in fault.problem
    long = {**WITH_TOKEN, "drain.handoff": "http://gateway:8800", "drain.timeout": "30s"}
    assert make({**long, "drain.linger": "20s"}).drain.handoff_time == 10_000
    (fault,) = faults_of(nest({**long, "drain.linger": "21s"}))
    assert (fault.key, fault.allowed) == ("drain.linger", 'at most "20s"')
    assert make({"drain.timeout": "30s"}).drain.handoff_time == 0


def test_the_control_socket_has_a_path_that_the_kernel_takes() -> None:
    assert len(str(make({"listen.control": "/" + "a" * 106}).listen.control)) == 107
    (fault,) = faults_of(nest({"store.path": "/" + "a" * 100}))
    assert fault.key == "listen.control"


@pytest.mark.parametrize(
    ("probe", "taken_by"),
    [("127.0.0.1:8800", "listen.ingest"), ("0.0.0.0:8801", "listen.status"), ("127.0.0.1:8802", None)],
)
def test_the_probe_listener_has_an_address_of_its_own(probe: str, taken_by: str | None) -> None:
    if taken_by is None:
        assert make({"listen.probe": probe}).listen.probe == Address("127.0.0.1", 8802)
        return
    (fault,) = faults_of(nest({"listen.probe": probe}))
    assert fault.key == "listen.probe"
    assert taken_by in fault.problem


@pytest.mark.parametrize("group", ["ops", "1234", "domain.users@example"])
def test_the_socket_of_a_group_lies_outside_the_store(group: str) -> None:
    outside = {"listen.control_group": group, "listen.control": "/run/holdfast/control.sock"}
    assert make(outside).listen.control_group == group
    for control in ("", "/var/lib/holdfast/x/control.sock"):
        (fault,) = faults_of(nest({"listen.control_group": group, "listen.control": control}))
        assert fault.key == "listen.control_group"


def test_proxy_credentials_need_a_proxy() -> None:
    (fault,) = faults_of(nest({"delivery.proxy_credentials_file": "/c"}))
    assert fault.key == "delivery.proxy_credentials_file"


def test_holdfast_is_not_its_own_proxy() -> None:
    (fault,) = faults_of(nest({"delivery.proxy": "http://127.0.0.1:8800"}))
    assert "holdfast itself" in fault.problem


def test_client_certificates() -> None:
    got = build(route(client_cert_file="c.pem", client_key_file="k.pem"), cwd=Path("/etc")).routes["b"]
    assert (got.client_cert_file, got.client_key_file) == (Path("/etc/c.pem"), Path("/etc/k.pem"))
    (fault,) = faults_of(route(client_key_file="/k.pem"))
    assert fault.key == "routes.b.client_key_file"
    (fault,) = faults_of(route(url="http://a.example", client_cert_file="/c.pem"))
    assert fault.key == "routes.b.client_cert_file"
