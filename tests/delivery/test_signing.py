"""Signatures as a receiver verifies them; secrets that change, disappear or are invalid."""

import os
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from standardwebhooks import Webhook, WebhookVerificationError

from holdfast.config import SignSettings
from holdfast.config.config_files import MOST
from holdfast.core.errors import SecretMissing
from holdfast.delivery.signing import UNCHANGED_FOR, Signer

OLD = "whsec_" + b64encode(b"old " * 8).decode()
NEW = "whsec_" + b64encode(b"new " * 8).decode()
SEED = bytes(range(32))
PRIVATE = "whsk_" + b64encode(SEED).decode()
ID = b"msg_1"
BODY = '{"amount": 12, "for": "Ærø"}'.encode()


def now() -> int:
    """The library refuses old signatures."""
    return int(datetime.now(UTC).timestamp() * 1000)


def later() -> int:
    """A moment when all files written so far count as complete."""
    return now() + UNCHANGED_FOR


def of_file(path: Path) -> Signer:
    return Signer(SignSettings("standard-webhooks", path, None), {})


def of_environment(value: str) -> Signer:
    return Signer(SignSettings("standard-webhooks", None, "BILLING"), {"BILLING": value})


def signed(signer: Signer, body: bytes = BODY, at: int | None = None) -> dict[str, str]:
    """The headers as a receiver has them."""
    lines = signer.headers(ID, now() if at is None else at, body).decode().split("\r\n")
    pairs = [line.partition(": ") for line in lines if line]
    return {"webhook-id": ID.decode()} | {name: value for name, _, value in pairs}


def verify(secret: str, headers: dict[str, str], body: bytes = BODY) -> None:
    Webhook(secret).verify(body, headers, json_parse=False)


def test_a_receiver_verifies_the_signature() -> None:
    headers = signed(of_environment(OLD))
    verify(OLD, headers)
    with pytest.raises(WebhookVerificationError):
        verify(NEW, headers)
    with pytest.raises(WebhookVerificationError):
        verify(OLD, headers, BODY + b" ")
    with pytest.raises(WebhookVerificationError):
        verify(OLD, headers | {"webhook-id": "msg_2"})


def test_the_signature_equals_the_librarys() -> None:
    moment = datetime.fromtimestamp(1_800_000_000, UTC)
    assert signed(of_environment(OLD), at=1_800_000_000_999) == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1800000000",
        "webhook-signature": Webhook(OLD).sign("msg_1", moment, BODY.decode()),
    }


def test_a_binary_body_is_signed() -> None:
    assert signed(of_environment(OLD), b"\xff\x00\xfe")["webhook-signature"].startswith("v1,")


@pytest.mark.parametrize("spelled", [OLD.removeprefix("whsec_"), OLD.rstrip("="), f"\r\n  {OLD}\t\r\n\n"])
def test_all_spellings_of_a_secret_give_the_same_signature(spelled: str) -> None:
    verify(OLD, signed(of_environment(spelled)))


def test_during_rotation_the_old_and_the_new_secret_verify(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(f"{OLD}\n{NEW}\n")
    headers = signed(of_file(secret))
    assert len(headers["webhook-signature"].split(" ")) == 2
    verify(OLD, headers)
    verify(NEW, headers)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    verify(OLD, signed(signer))
    secret.write_text(f"{OLD}\n{NEW}")
    verify(NEW, signed(signer, at=later()))
    secret.write_text(NEW)
    headers = signed(signer, at=later())
    verify(NEW, headers)
    with pytest.raises(WebhookVerificationError):
        verify(OLD, headers)


HALF = NEW[: len(NEW) // 2]


@pytest.mark.parametrize("half", ["", "\n", HALF, f"{OLD}\n{HALF}", "whsec_", "whsk_", "whsk_AAAA", "\xff"])
def test_a_file_that_is_being_written_is_not_used(tmp_path: Path, half: str) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    before = signed(signer, at=1_000)
    secret.write_text(half, "latin-1")
    assert signed(signer, at=1_000) == before
    assert signed(signer, at=1_000) == before
    secret.write_text(NEW)
    assert signed(signer, at=1_000) == before
    verify(NEW, signed(signer, at=later()))


def test_a_change_is_used_when_the_file_has_stayed_unchanged(tmp_path: Path) -> None:
    """By the file's own time, or by two looks if that time is not by this machine's clock."""
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    secret.write_text(NEW)
    changed = secret.stat().st_ctime_ns // 1_000_000
    is_new = [signs_with(NEW, signer, at) for at in (changed, changed + UNCHANGED_FOR - 1, changed + UNCHANGED_FOR)]
    assert is_new == [False, False, True]
    secret.write_text(OLD)
    is_old = [signs_with(OLD, signer, at) for at in (5_000, 5_000 + UNCHANGED_FOR - 1, 5_000 + UNCHANGED_FOR)]
    assert is_old == [False, False, True]


def test_a_file_that_keeps_changing_is_not_used(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    for look, half in enumerate(("", "whsec_", HALF, NEW)):
        secret.write_text(half)
        assert signs_with(OLD, signer, look * UNCHANGED_FOR)
    assert signs_with(NEW, signer, 4 * UNCHANGED_FOR)


def test_an_unchanged_file_without_a_secret_fails_and_the_old_secret_is_not_used(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    secret.write_text("")
    with pytest.raises(SecretMissing, match="there is no secret"):
        signed(signer, at=later())
    secret.write_text(NEW)
    with pytest.raises(SecretMissing, match="it is being written"):
        signed(signer, at=1_000)
    verify(NEW, signed(signer, at=later()))


def test_a_file_that_is_moved_away_and_back_signs_again(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    away = secret.rename(tmp_path / "away")
    with pytest.raises(SecretMissing):
        signed(signer)
    away.rename(secret)
    assert signs_with(OLD, signer, later())


def signs_with(secret: str, signer: Signer, at: int) -> bool:
    moment = datetime.fromtimestamp(at // 1000, UTC)
    return signed(signer, at=at)["webhook-signature"] == Webhook(secret).sign("msg_1", moment, BODY.decode())


def test_a_mounted_secret_replaced_by_switching_a_link_is_used_at_once(tmp_path: Path) -> None:
    for name, secret in (("one", OLD), ("two", NEW)):
        (tmp_path / name).write_text(secret)
        os.utime(tmp_path / name, ns=(1, 1))
    link = tmp_path / "billing"
    link.symlink_to("one")
    signer = of_file(link)
    (tmp_path / "turned").symlink_to("two")
    (tmp_path / "turned").rename(link)
    verify(NEW, signed(signer))


def test_files_that_block_or_never_end_fail_at_once(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    replaced = {
        "it is not a regular file": (lambda: os.mkfifo(secret), lambda: secret.symlink_to("/dev/zero")),
        "it is larger than 4 MiB": (lambda: secret.write_bytes(bytes(MOST + 1)),),
    }
    for why, ways in replaced.items():
        for replace in ways:
            secret.unlink()
            replace()
            for at in (now(), later()):
                with pytest.raises(SecretMissing, match=f"{secret} can't be read: {why}"):
                    signed(signer, at=at)
    secret.unlink()
    secret.write_text(NEW)
    verify(NEW, signed(signer, at=later()))


def test_a_secret_that_disappears_fails_until_it_is_back(tmp_path: Path) -> None:
    secret = tmp_path / "billing"
    secret.write_text(OLD)
    signer = of_file(secret)
    for broken in (secret.unlink, lambda: secret.write_text(""), lambda: secret.write_text("not base64!")):
        broken()
        for _ in range(2):
            with pytest.raises(SecretMissing):
                signed(signer, at=later())
    secret.write_text(NEW)
    verify(NEW, signed(signer, at=later()))


@pytest.mark.parametrize("encoded", [SEED, SEED + bytes(32)])
def test_an_ed25519_signature_verifies(encoded: bytes) -> None:
    headers = signed(of_environment("whsk_" + b64encode(encoded).decode()))
    version, _, signature = headers["webhook-signature"].partition(",")
    content = b"%b.%b.%b" % (ID, headers["webhook-timestamp"].encode(), BODY)
    public = Ed25519PrivateKey.from_private_bytes(SEED).public_key()
    assert version == "v1a"
    assert len(public.public_bytes(Encoding.Raw, PublicFormat.Raw)) == 32
    public.verify(b64decode(signature), content)
    with pytest.raises(InvalidSignature):
        public.verify(b64decode(signature), content + b" ")


def test_a_shared_and_a_private_key_both_sign() -> None:
    headers = signed(of_environment(f"{PRIVATE}\n{OLD}"))
    assert [part[:3] for part in headers["webhook-signature"].split(" ")] == ["v1a", "v1,"]
    verify(OLD, headers)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no secret"),
        ("\n \n", "there is no secret"),
        ("whsec_", "line 1 is an empty secret"),
        (f"{OLD}\nhunter2!", "line 2 is no secret"),
        ("whsec_Ærø", "line 1 is no secret"),
        ("whsk_" + b64encode(bytes(31)).decode(), "line 1 is no ed25519 private key: 31 bytes"),
    ],
)
def test_an_error_about_a_secret_does_not_repeat_it(text: str, problem: str) -> None:
    with pytest.raises(SecretMissing) as raised:
        of_environment(text)
    assert problem in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_missing_sources_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SecretMissing, match="that secret_env names is not set"):
        Signer(SignSettings("standard-webhooks", None, "BILLING"), {})
    with pytest.raises(SecretMissing, match="can't be read: No such file"):
        of_file(tmp_path / "nothing")
    with pytest.raises(SecretMissing, match="can't be read: it is not a regular file"):
        of_file(tmp_path)


def test_short_keys_are_weak() -> None:
    assert of_environment("whsec_" + b64encode(bytes(23)).decode()).is_weak
    assert not of_environment("whsec_" + b64encode(bytes(24)).decode()).is_weak
    assert not of_environment(PRIVATE).is_weak
