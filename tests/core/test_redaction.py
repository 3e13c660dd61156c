"""What an answer quotes of the request's secrets is struck out, and nothing else."""

import pytest

from core.build import entry
from holdfast.core.outcome import ANSWER_KEPT
from holdfast.core.redaction import REDACTED, without_secrets

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
def test_a_quoted_secret_is_struck_out(quoted):
    answer = without_secrets(b"cannot accept <" + quoted + b">, sorry", SENT)
    assert answer is not None
    assert not any(secret in answer for secret in SECRETS)
    assert answer.startswith(b"cannot accept <") and answer.endswith(b">, sorry")
    assert REDACTED in answer


def test_a_secret_that_the_end_of_the_answer_cuts_is_struck_out():
    for secret in (*SECRETS[:5], SENT.body):
        for length in range(8, len(secret)):
            before = b" " * (ANSWER_KEPT - length)
            assert without_secrets(before + secret[:length], SENT) == before + REDACTED


@pytest.mark.parametrize("answer", [None, b"", b"no such hook", b"want application/json, Bearer, dark, v=2, /services"])
def test_the_rest_stays(answer):
    assert without_secrets(answer, SENT) == answer


def test_a_plain_message_has_nothing_to_strike_out():
    plain = entry().message._replace(path=b"/", headers=((b"accept", b"*/*"),), body=b"ok, fine")
    assert without_secrets(b"/ */* ok, fine", plain) == b"/ */* ok, fine"
