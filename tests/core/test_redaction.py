"""Quoted secrets of the request are removed from an answer, and nothing else."""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import redaction
from holdfast.core.message import ANSWER_KEPT, Message
from holdfast.core.redaction import MOST_SECRETS, REDACTED, without_secrets
from tests.core.build import entry

SENT = entry().message._replace(
    path=b"/services/T0001/B0002/aVeryLongSecretOfThePath?sig=anotherLongSecretOfTheQuery&v=2",
    headers=(
        (b"authorization", b"Bearer for-the-receiver"),
        (b"cookie", b"sid=cookie-secret; theme=dark"),
        (b"x-api-key", b"api-key-secret"),
        (b"content-type", b"application/json"),
    ),
    body=b'{"card": "4000-0000-0000-0002"}',
)
SECRETS = [
    b"for-the-receiver",
    b"cookie-secret",
    b"api-key-secret",
    b"aVeryLongSecretOfThePath",
    b"anotherLongSecretOfTheQuery",
    b"4000-0000-0000-0002",
]


@pytest.mark.parametrize(
    "quoted",
    [*(value for _, value in SENT.headers[:3]), SENT.path, SENT.path.partition(b"?")[0], SENT.body, *SECRETS[:5]],
)
def test_a_quoted_secret_is_redacted(quoted):
    answer = without_secrets(b"cannot accept <" + quoted + b">, sorry", SENT)
    assert answer is not None
    assert not any(secret in answer for secret in SECRETS)
    assert answer.startswith(b"cannot accept <") and answer.endswith(b">, sorry")
    assert REDACTED in answer


def sent(path: bytes = b"/", body: bytes = b"", **headers: bytes) -> Message:
    named = tuple((name.replace("_", "-").encode(), value) for name, value in headers.items())
    return entry().message._replace(path=path, headers=named, body=body)


def test_a_secret_cut_by_the_end_of_the_answer_is_redacted():
    for secret in (*SECRETS[:5], SENT.body):
        for length in range(4, len(secret)):
            before = b" " * (ANSWER_KEPT - length)
            assert without_secrets(before + secret[:length], SENT) == (before + REDACTED)[:ANSWER_KEPT]


def test_a_receiver_may_end_its_answer_within_a_secret():
    assert without_secrets(b"no: for-the-recei", SENT) == b"no: " + REDACTED


@pytest.mark.parametrize("answer", [None, b"", b"no such hook", b"/services: want application/json, Bearer, dark, v=2"])
def test_the_rest_stays(answer):
    assert without_secrets(answer, SENT) == answer


def test_a_message_without_secrets_changes_no_answer():
    plain = entry().message._replace(path=b"/", headers=((b"accept", b"*/*"),), body=b"ok, fine")
    assert without_secrets(b"/ */* ok, fine", plain) == b"/ */* ok, fine"


# -- what is a secret --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["x_pin", "x_pass", "x_passwd", "pwd", "x_otp", "totp", "login_code", "x_sid", "x_hmac", "jwt", "x_csrf"]
)
@pytest.mark.parametrize("value", [b"4711", b"kitten", b"hunter2"])
def test_short_secrets_in_headers(name: str, value: bytes) -> None:
    assert without_secrets(b"what is " + value + b"?", sent(**{name: value})) == b"what is [redacted]?"


@pytest.mark.parametrize("name", ["x_pinned", "content_type", "x_decoder", "accept", "x_design", "x_shipping"])
def test_other_headers_are_no_secrets(name: str) -> None:
    assert without_secrets(b"hunter2 4711", sent(**{name: b"hunter2 4711"})) == b"hunter2 4711"


@pytest.mark.parametrize("secret", [b"T0k3n", b"4711", b"aBcDeF", b"wordtoken", b"half-a-word"])
@pytest.mark.parametrize("path", [b"/hook/%b", b"/hook/%b/", b"/hook?key=%b", b"/hook?a=1&key=%b&b=2"])
def test_short_secrets_in_a_target(secret: bytes, path: bytes) -> None:
    message = sent(path % secret)
    assert without_secrets(b"hook " + secret + b" is off", message) == b"hook [redacted] is off"


def test_words_in_the_middle_of_a_target_stay():
    message = sent(b"/webhooks/incoming/v2/7f3a?customer=9&signature=x")
    said = b"webhooks: no incoming for this customer; no signature in v2"
    assert without_secrets(said, message) == said


@pytest.mark.parametrize(
    "quoted",
    [
        b"dG9rZW4vd2l0aC9zbGFzaGVz+0123456789abcdef==",
        b"dG9rZW4vd2l0aC9zbGFzaGVz\\/0123456789abcdef==",
        b"dG9rZW4vd2l0aC9zbGFzaGVz%2F0123456789abcdef%3D%3D",
        b"dG9rZW4vd2l0aC9zbGFzaGVz&#x2F;0123456789abcdef==",
    ],
)
def test_other_encodings_reveal_only_short_pieces(quoted: bytes) -> None:
    message = sent(x_api_key=b"dG9rZW4vd2l0aC9zbGFzaGVz/0123456789abcdef==")
    answer = without_secrets(b"bad key " + quoted, message) or b""
    assert b"dG9rZW4v" not in answer and b"abcdef" not in answer


def test_a_target_that_is_quoted_decoded():
    message = sent(b"/hook/my%20secret%2Ftoken99?key=two%20w0rds")
    assert without_secrets(b"no: my secret/token99, two w0rds", message) == b"no: my secret/[redacted], two [redacted]"


def test_overlapping_secrets_are_replaced_once():
    message = sent(x_token=b"abcdefgh12, gh12secret", x_key=b"abcdefgh")
    assert without_secrets(b"<abcdefgh12secret>", message) == b"<[redacted]>"
    assert without_secrets(b"<abcdefgh.>", message) == b"<[redacted].>"


@given(
    st.lists(st.binary(min_size=8, max_size=12).map(lambda b: bytes(97 + each % 3 for each in b)), max_size=5),
    st.lists(st.integers(0, 4) | st.binary(max_size=5).map(lambda b: bytes(97 + each % 3 for each in b)), max_size=200),
)
def test_no_secret_is_left_between_two_replacements(secrets: list[bytes], parts: list[Any]) -> None:
    pieces = [part if isinstance(part, bytes) else secrets[part] if part < len(secrets) else b"-" for part in parts]
    answer = without_secrets(b"".join(pieces), sent(x_token=b" ".join(secrets))) or b""
    assert len(answer) <= ANSWER_KEPT
    assert not any(secret in between for between in answer.split(REDACTED) for secret in secrets)


# -- what it costs -----------------------------------------------------------------------------------------------------


def steps(answer: bytes, message: Message) -> int:
    """How many lines of the module run. Each is at most one pass over the kept answer, or over one secret."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != redaction.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        kept = without_secrets(answer, message)
    finally:
        sys.settrace(before)
    assert kept is not None and len(kept) <= ANSWER_KEPT
    return count


def test_a_replacement_is_never_searched_again():
    message = sent(x_token=b",".join([b"redacted"] * 3_500))
    assert without_secrets(b"redacted " * 120, message) == (b"[redacted] " * 120)[:ANSWER_KEPT]


def test_the_work_grows_with_the_head_and_no_faster():
    few, many = (steps(b"redacted " * 120, sent(x_token=b",".join([b"redacted"] * n))) for n in (1_000, 4_000))
    assert many < 4.5 * few


@pytest.mark.parametrize(
    "secrets",
    [
        [b"a" * length for length in range(4, 60)],
        [b"aaaaaaaa%d" % number for number in range(60)],
        [b"a" * 1_000 + b"%d" % number for number in range(30)],
        [b"aaaa", *(b"a" * 500 + b"%d" % number for number in range(50))],
    ],
)
def test_the_search_is_bounded_whatever_the_secrets_are(secrets: list[bytes]) -> None:
    most = 4 * MOST_SECRETS * ANSWER_KEPT
    assert steps(b"a" * 70_000, sent(x_token=b",".join(secrets))) < most
    assert steps(b"a" * 70_000, sent(x_token=b",".join(secrets), body=b"a" * 2_000_000)) < most


def test_with_too_many_secrets_the_whole_answer_is_dropped():
    def said(number: int) -> bytes | None:
        return without_secrets(b"never mind", sent(x_token=b",".join(b"secret-%d" % each for each in range(number))))

    assert said(MOST_SECRETS - 1) == b"never mind"
    assert said(MOST_SECRETS) == REDACTED  # and the whole value
    assert said(3_000) == REDACTED
