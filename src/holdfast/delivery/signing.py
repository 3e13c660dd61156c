"""Standard Webhooks: what a route's messages are signed with, and the signatures.

A secret is `whsec_` and the base64 of a key shared with the receiver (HMAC-SHA256, `v1`), or `whsk_` and that of an
ed25519 private key (`v1a`). Several secrets give several signatures, so that a receiver may change from one to the
next. The secrets of a file are read again when the file has changed and rests: half of a secret may be one too, by
which no receiver could verify. Until then the ones before count. A file that is gone, or is none any more, fails the
attempt.

The signature is over bytes, since a webhook's body may be any: `standardwebhooks`, which takes text alone, is what
the tests verify with.
"""

import binascii
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from holdfast.config import Sign, read_regular, stat_regular, unreadable
from holdfast.core.errors import SecretMissing

SYMMETRIC_PREFIX = "whsec_"
PRIVATE_PREFIX = "whsk_"
REST = 2_000
"""Milliseconds that a file has to stay as it is before it is taken for whole."""
STRONG = 24
"""Bytes that Standard Webhooks asks of a shared key at least."""

SIGNED_HEADERS = frozenset({b"webhook-timestamp", b"webhook-signature"})
"""Headers that are holdfast's own to write on a signed route."""

_SEED = 32
_SEED_AND_PUBLIC = 64

Signature = Callable[[bytes], bytes]
"""From what is signed to the signature with its version, as it stands in the header."""


class Source(Protocol):
    """Where secrets come from. `version` changes when they may have changed; whether it `rests` is asked of one that
    has changed, at `now` in milliseconds.
    """

    def version(self) -> object: ...

    def rests(self, version: object, now: int) -> bool: ...

    def text(self) -> str: ...


class FileSource:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._real = ""
        """The file that was read, with every link followed."""
        self._changed_at = 0
        self._seen: tuple[object, int] = None, 0

    def version(self) -> object:
        """By inode too: a mounted Secret is replaced by turning a link."""
        try:
            status = stat_regular(self._path)
        except OSError as error:
            raise SecretMissing(unreadable(self._path, error)) from error
        self._changed_at = max(status.st_mtime_ns, status.st_ctime_ns) // 1_000_000
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size

    def rests(self, version: object, now: int) -> bool:
        """Whether nobody writes to it. Where a link was turned it was whole before, and its own time tells of any other
        change; a file whose time is not this machine's has to be seen twice.
        """
        if os.path.realpath(self._path) != self._real or now - self._changed_at >= REST:
            return True
        if version != self._seen[0]:
            self._seen = version, now
        return now - self._seen[1] >= REST

    def text(self) -> str:
        self._real = os.path.realpath(self._path)
        try:
            return read_regular(self._path).decode("ascii")
        except OSError as error:
            raise SecretMissing(unreadable(self._path, error)) from error
        except UnicodeDecodeError as error:
            raise SecretMissing(f"{self._path} holds other characters than ASCII") from error


class EnvironmentSource:
    """A variable of the process, which never changes while it runs."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._value = environ.get(name)

    def version(self) -> object:
        return None

    def rests(self, version: object, now: int) -> bool:
        return True

    def text(self) -> str:
        if self._value is None:
            raise SecretMissing("the environment variable that secret_env names is not set")
        return self._value


class Signer:
    """Signs the messages of one route. Made, it has secrets: without any, making it raises SecretMissing."""

    def __init__(self, sign: Sign, environ: Mapping[str, str]) -> None:
        self._source: Source
        if sign.secret_file is not None:
            self._source = FileSource(sign.secret_file)
        else:
            self._source = EnvironmentSource(sign.secret_env or "", environ)
        self.is_weak = False
        """Whether a shared key is shorter than Standard Webhooks asks for."""
        self._signatures: list[Signature] = []
        self._version: object = None
        self._read(self._source.version())

    def headers(self, id: bytes, wall: int, body: bytes) -> bytes:
        """The lines that sign one attempt; `id` is the message's `webhook-id`. A verifier compares the timestamp with
        its own wall clock: `wall` is this machine's, in milliseconds.
        """
        self._refresh(wall)
        timestamp = b"%d" % (wall // 1000)
        content = b"%b.%b.%b" % (id, timestamp, body)
        signatures = b" ".join([signature(content) for signature in self._signatures])
        return b"webhook-timestamp: %b\r\nwebhook-signature: %b\r\n" % (timestamp, signatures)

    def _refresh(self, now: int) -> None:
        try:
            version = self._source.version()
            if version == self._version:
                return
            if self._source.rests(version, now):
                self._read(version)
        except SecretMissing:
            # What was taken away is not used again while something else comes in its place.
            self._signatures, self._version = [], None
            raise
        if not self._signatures:
            raise SecretMissing("it is being written")

    def _read(self, version: object) -> None:
        lines = self._source.text().split("\n")
        secrets = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
        if not secrets:
            raise SecretMissing("there is no secret in it; write one on each line")
        keys = [_key(secret, number) for number, secret in secrets]
        if self._source.version() != version:
            raise SecretMissing("it is being written")
        self._signatures = [_private(key) if private else _symmetric(key) for private, key in keys]
        self.is_weak = any(not private and len(key) < STRONG for private, key in keys)
        self._version = version


def _key(secret: str, line: int) -> tuple[bool, bytes]:
    """Whether it is a private key, and its bytes."""
    private = secret.startswith(PRIVATE_PREFIX)
    encoded = secret.removeprefix(PRIVATE_PREFIX if private else SYMMETRIC_PREFIX)
    try:
        key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SecretMissing(f"line {line} is no secret: whsec_ or whsk_, then base64") from error
    if private and len(key) not in (_SEED, _SEED_AND_PUBLIC):
        raise SecretMissing(f"line {line} is no ed25519 private key: {len(key)} bytes, not {_SEED}")
    if not key:
        raise SecretMissing(f"line {line} is an empty secret")
    return private, key


def _symmetric(key: bytes) -> Signature:
    return lambda content: b"v1," + b64encode(hmac.digest(key, content, "sha256"))


def _private(key: bytes) -> Signature:
    # Seven megabytes that only routes signed this way should cost.
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise SecretMissing("whsk_ secrets need the cryptography package: install holdfast[ed25519]") from error
    private = Ed25519PrivateKey.from_private_bytes(key[:_SEED])
    return lambda content: b"v1a," + b64encode(private.sign(content))
