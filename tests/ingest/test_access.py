"""Who may send to ingest, decided by the head."""

import pytest

from holdfast.config import Address, ConfigError
from holdfast.http.codec import RequestHead
from holdfast.ingest.access import AccessCheck, OwnAddress, read_token
from holdfast.ingest.refusals import BROWSER, WRONG_HOST, WRONG_METHOD, WRONG_TOKEN, Refused

HERE = Address("127.0.0.1", 8800)
HOST = (b"host", b"127.0.0.1:8800")


def check(*headers, method="POST", target=b"/https://h/", token=None, listening=HERE):
    head = RequestHead(method, target, list(headers), "1.1", True, 0, False, False)
    AccessCheck(OwnAddress(listening, ["gate.test"]), token).check(head)


def refusal(*headers, **options):
    with pytest.raises(Refused) as caught:
        check(*headers, **options)
    return caught.value.refusal


@pytest.mark.parametrize("header", [(b"sec-fetch-mode", b"cors"), (b"sec-fetch-site", b"none"), (b"referer", b"x")])
def test_a_request_that_is_not_from_a_page_is_accepted(header):
    check(HOST, header)


@pytest.mark.parametrize(
    "header",
    [
        (b"origin", b"https://evil.test"),
        (b"origin", b"null"),
        (b"origin", b""),
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-site", b"same-origin"),
        (b"sec-fetch-site", b""),
    ],
)
def test_a_browser_is_refused(header):
    assert refusal(HOST, header) is BROWSER
    assert refusal(HOST, header, (b"holdfast-token", b"t"), token=b"t") is BROWSER
    assert refusal(header, target=b"http://api.example.com/") is BROWSER


@pytest.mark.parametrize("site", [b"cross-site", b"none"])
def test_a_repeated_header_can_not_hide_another_value(site):
    assert refusal(HOST, (b"sec-fetch-site", site), (b"sec-fetch-site", b"none")) is BROWSER
    assert refusal(HOST, (b"sec-fetch-site", b"none"), (b"sec-fetch-site", site)) is BROWSER
    assert refusal(HOST, (b"holdfast-token", b"wrong"), (b"holdfast-token", b"t"), token=b"t") is WRONG_TOKEN


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1:8800", b"127.0.0.1", b"localhost", b"localhost:8800", b"LocalHost:8800", b"[::1]", b"[::1]:8800",
        b"gate.test", b"Gate.Test:8800",
    ],
)  # fmt: skip
def test_host_may_name_this_sidecar(host):
    check((b"host", host))


@pytest.mark.parametrize(
    "host",
    [
        b"evil.test", b"evil.test:8800", b"localhost:8801", b"localhost.", b"127.0.0.2:8800", b"::1", b"",
        b"gate.test.evil", b"localhost:8800:8800",
    ],
)  # fmt: skip
def test_any_other_host_is_refused(host):
    assert refusal((b"host", host)) is WRONG_HOST


def test_host_may_name_the_address_of_the_listener():
    check((b"host", b"[fd00::7]:9000"), listening=Address("fd00::7", 9000))
    assert refusal((b"host", b"[fd00::7]:9000")) is WRONG_HOST


def test_a_request_without_host_is_refused():
    assert refusal() is WRONG_HOST


def test_host_is_ignored_in_absolute_form_and_with_a_token():
    check((b"host", b"evil.test"), target=b"http://api.example.com/")
    check((b"host", b"evil.test"), (b"holdfast-token", b"secret"), token=b"secret")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"holdfast-token", b"wrong")],
        [(b"holdfast-token", b"")],
        [(b"authorization", b"Bearer secret")],
        [(b"proxy-authorization", b"Bearer secret")],
    ],
)
def test_a_wrong_token_in_origin_form_is_refused(headers):
    assert refusal(HOST, *headers, token=b"secret") is WRONG_TOKEN


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"proxy-authorization", b"Bearer wrong")],
        [(b"proxy-authorization", b"Basic secret")],
        [(b"authorization", b"Bearer secret")],
    ],
)
def test_a_wrong_token_in_proxy_form_is_refused(headers):
    assert refusal(*headers, target=b"http://api.example.com/", token=b"secret") is WRONG_TOKEN


@pytest.mark.parametrize(
    "header",
    [
        (b"proxy-authorization", b"Bearer secret"),
        (b"proxy-authorization", b"bearer  secret"),
        (b"holdfast-token", b"secret"),
    ],
)
def test_a_token_in_proxy_form_is_accepted(header):
    check(header, target=b"http://api.example.com/", token=b"secret")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_methods_that_change_something_are_accepted(method):
    check(HOST, method=method)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_refused(method):
    with pytest.raises(Refused) as caught:
        check(HOST, method=method, target=b"api.example.com:443" if method == "CONNECT" else b"/https://h/")
    assert caught.value.refusal is WRONG_METHOD
    assert caught.value.headers == ((b"allow", b"POST, PUT, PATCH, DELETE"),)
    assert ("ingest.upgrade_to_https" in caught.value.detail) is (method == "CONNECT")


def test_a_token_is_read_without_white_space_around_it(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(b" s3cret\n")
    assert read_token(file) == b"s3cret"


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"two words", b"\xe9", None])
def test_a_file_without_a_token_is_a_config_error(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"ingest\.token_file"):
        read_token(file)
