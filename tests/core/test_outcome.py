import errno
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.message import ErrorKind, Fault
from holdfast.core.outcome import of_answer, of_error, parse_retry_after
from tests.core.build import HOUR, NOW

FAR = 1 << 60
OTHERS = [status for status in range(100, 600) if not 200 <= status <= 299]
MOMENT = datetime.fromtimestamp(NOW / 1000, UTC)


def answer(status: int, retry_after: bytes | None = None, body: bytes = b""):
    headers = [(b"content-type", b"text/plain")]
    if retry_after is not None:
        headers.append((b"retry-after", retry_after))
    return of_answer(status, headers, body, "192.0.2.1:443", NOW, NOW)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 226, 299])
def test_2xx_is_success(status):
    outcome = answer(status, b"60", b"thanks")
    assert outcome.delivered
    assert (outcome.status, outcome.fault, outcome.error, outcome.detail) == (status, None, None, None)
    assert not outcome.host_hold(FAR)


def test_every_2xx_and_nothing_else_is_success():
    assert [status for status in range(100, 1000) if answer(status).delivered] == list(range(200, 300))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_the_hosts_fault(status):
    assert (answer(status).delivered, answer(status).fault) == (False, Fault.HOST)


@pytest.mark.parametrize("status", [404, 410])
def test_404_and_410_are_failures_like_any_other(status):
    """The receiver may come back: nothing tells them from a 500."""
    gone, broken = answer(status), answer(500)
    assert (gone.delivered, gone.fault, gone.error) == (broken.delivered, broken.fault, broken.error)


@pytest.mark.parametrize("status", OTHERS)
def test_every_other_status_is_the_hosts_fault(status):
    outcome = answer(status)
    assert not outcome.delivered
    assert (outcome.status, outcome.fault, outcome.error) == (status, Fault.HOST, None)


def test_a_407_of_the_receiver_is_the_hosts_fault():
    """Only the forward proxy's 407 is this side's, and that comes as an error of kind proxy."""
    assert answer(407).fault is Fault.HOST


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_error_fails_the_attempt(kind):
    outcome = of_error(kind, "why", address="192.0.2.1:443")
    assert not outcome.delivered
    assert (outcome.error, outcome.detail, outcome.address) == (kind, "why", "192.0.2.1:443")
    assert (outcome.status, outcome.retry_after, outcome.host_hold(FAR)) == (None, None, 0)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ErrorKind.TIMEOUT, Fault.HOST),
        (ErrorKind.CONNECT, Fault.HOST),
        (ErrorKind.DNS, Fault.HOST),
        (ErrorKind.TLS, Fault.HOST),
        (ErrorKind.RESET, Fault.HOST),
        (ErrorKind.PROTOCOL, Fault.HOST),
        (ErrorKind.EGRESS_DENIED, Fault.HERE),
        (ErrorKind.PROXY, Fault.HOST),
        (ErrorKind.SECRET, Fault.HERE),
        (ErrorKind.INTERRUPTED, Fault.HERE),
    ],
)
def test_whose_fault_an_error_is_by_its_kind_alone(kind, fault):
    assert of_error(kind, "").fault is fault


@pytest.mark.parametrize("kind", ErrorKind)
@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ENETUNREACH"])
def test_no_descriptors_buffers_memory_or_route_is_this_sides_fault(kind, name):
    assert of_error(kind, "", number=getattr(errno, name)).fault is Fault.HERE


@pytest.mark.parametrize(
    "name", ["ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ETIMEDOUT", "EPIPE", "ECONNABORTED", "EACCES"]
)
def test_any_other_errno_is_the_hosts_fault(name):
    assert of_error(ErrorKind.CONNECT, "", number=getattr(errno, name)).fault is Fault.HOST


@pytest.mark.parametrize("kind", [ErrorKind.PROXY, ErrorKind.DNS])
def test_an_unreachable_proxy_or_resolver_is_this_sides_fault_when_the_caller_says_so(kind):
    """The proxy unreachable or answering 407, and EAI_AGAIN."""
    assert of_error(kind, "", here=True).fault is Fault.HERE


@pytest.mark.parametrize("kind", [ErrorKind.PROXY, ErrorKind.DNS])
def test_a_proxys_5xx_and_a_name_that_does_not_exist_are_the_hosts_fault(kind):
    assert of_error(kind, "503 from the proxy, or EAI_NONAME").fault is Fault.HOST


@pytest.mark.parametrize(
    ("value", "after"),
    [
        ("1", 1_000),
        ("120", 120_000),
        (" 120 ", 120_000),
        ("0000000120", 120_000),
        ("9999999999", 9_999_999_999_000),
    ],
)
def test_retry_after_in_seconds(value, after):
    assert parse_retry_after(value, NOW, NOW) == NOW + after


@pytest.mark.parametrize("value", ["99999999999", "1" * 20, "9" * 5000])
def test_retry_after_of_very_many_seconds_is_still_seconds(value):
    """RFC 9110 sets no limit to the digits; the schedule's 24 h do."""
    asked = parse_retry_after(value, NOW, NOW)
    assert asked is not None
    assert asked > NOW + 365 * 24 * HOUR


@pytest.mark.parametrize(
    "value",
    [
        format_datetime(MOMENT + timedelta(hours=1), usegmt=True),
        (MOMENT + timedelta(hours=1)).strftime("%A, %d-%b-%y %H:%M:%S GMT"),
        (MOMENT + timedelta(hours=1)).strftime("%a %b %e %H:%M:%S %Y"),
        format_datetime((MOMENT + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5, minutes=30)))),
    ],
    ids=["imf-fixdate", "rfc850", "asctime", "with an offset"],
)
def test_retry_after_as_a_date(value):
    assert parse_retry_after(value, NOW, NOW) == NOW + HOUR


@pytest.mark.parametrize("off", [3 * 24 * HOUR, -3 * 24 * HOUR])
def test_a_date_is_by_the_wall_clock_and_seconds_are_by_neither(off):
    """Holdfast's own time may be days off: a receiver that asks for an hour gets an hour."""
    wall = NOW - off
    in_an_hour = format_datetime(datetime.fromtimestamp((wall + HOUR) / 1000, UTC), usegmt=True)
    assert parse_retry_after(in_an_hour, NOW, wall) == NOW + HOUR
    assert parse_retry_after("3600", NOW, wall) == NOW + HOUR
    over = format_datetime(datetime.fromtimestamp(wall / 1000, UTC), usegmt=True)
    assert parse_retry_after(over, NOW, wall) is None


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "-5",
        "-1",
        format_datetime(MOMENT, usegmt=True),
        format_datetime(MOMENT - timedelta(seconds=1), usegmt=True),
        "Thu, 01 Jan 1970 00:00:00 GMT",
    ],
)
def test_a_retry_after_in_the_past_is_ignored(value):
    assert parse_retry_after(value, NOW, NOW) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "soon",
        "1.5",
        "+5",
        "1e3",
        "5 seconds",
        "120, 240",
        "²",
        "Wed, 99 Foo 2023 99:99:99 GMT",
        "Wed, 31 Feb 2090 00:00:00 GMT",
        "Wed, 01 Jan 99999 00:00:00 GMT",
        "Mon, 01 Jan 2090 00:00:00 +999999999999999",
        "2090-01-01T00:00:00Z",
    ],
)
def test_a_malformed_retry_after_is_ignored(value):
    assert parse_retry_after(value, NOW, NOW) is None


DATE_LIKE = st.lists(
    st.sampled_from(["Mon,", "1", "Jan", "2090", "00:00:00", "GMT", "+9999", ":", ",", "-", "32", "0.1"])
    | st.text(max_size=4)
).map(" ".join)


@given(st.text() | DATE_LIKE)
@example("1 Jan 0001 00:00:00 +2359")
@example("31 Dec 9999 23:59:59 -2359")
@example("1 Jan 2090 00:00:00 " + "9" * 5000)
def test_whatever_retry_after_says_it_is_none_or_later_than_now(value):
    asked = parse_retry_after(value, NOW, NOW)
    assert asked is None or asked > NOW


@given(st.binary(max_size=60))
def test_whatever_bytes_a_retry_after_holds_the_answer_has_an_outcome(value):
    assert answer(503, value).fault is Fault.HOST


@pytest.mark.parametrize("status", OTHERS)
def test_only_429_and_503_with_retry_after_hold_the_whole_host(status):
    assert answer(status, b"60").host_hold(FAR) == (NOW + 60_000 if status in (429, 503) else 0)
    assert answer(status, b"60").retry_after == NOW + 60_000
    assert not answer(status).host_hold(FAR)


@pytest.mark.parametrize("value", [b"0", b"soon", b"Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_retry_after_that_asks_for_nothing_holds_no_host(value):
    assert not answer(503, value).host_hold(FAR)


def test_a_host_is_held_no_longer_than_to_its_next_probe():
    assert answer(503, b"60").host_hold(NOW + 1_000) == NOW + 1_000


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 65536])
def test_the_first_1_kib_of_a_failed_answer_are_kept(size):
    body = bytes(number % 251 for number in range(size))
    assert answer(500, body=body).answer == body[:1024]


def test_the_address_connected_to_is_kept():
    assert (answer(200).address, answer(500).address) == ("192.0.2.1:443", "192.0.2.1:443")
