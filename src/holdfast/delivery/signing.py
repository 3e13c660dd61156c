"""Signs the messages of routes by Standard Webhooks.

A secret is `whsec_` and the base64 of a key shared with the receiver (HMAC-SHA256, `v1`), or `whsk_` and the base64 of
an ed25519 private key (`v1a`). Several secrets give several signatures, so that a receiver can change from one to the
next.

A file of secrets is read again when it has changed and then stayed unchanged for a while: half of a secret may look
like a whole one, and no receiver could verify its signatures. Until then the previous secrets are used. If the file is
gone or not a regular file any more, the attempt fails.

The `standardwebhooks` package signs text only, and a webhook's body may be any bytes. The tests verify with it.
"""

import binascii
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from holdfast.config import SignSettings, read_regular, stat_regular, unreadable
from holdfast.core.errors import SecretMissing

SYMMETRIC_PREFIX = "whsec_"
PRIVATE_PREFIX = "whsk_"
UNCHANGED_FOR = 2_000
"""Milliseconds that a file has to stay unchanged before it counts as complete."""
STRONG_KEY = 24
"""Bytes that Standard Webhooks requires of a shared key."""

SIGNED_HEADERS = frozenset({b"webhook-timestamp", b"webhook-signature"})
"""Headers that holdfast writes on a signed route, whatever the app sent."""

_SEED = 32
_SEED_AND_PUBLIC = 64

Signature = Callable[[bytes], bytes]
"""Returns the signature of its argument in the form of the header, with its version."""


class SecretSource(Protocol):
    """Where secrets come from. `version` changes when they may have changed; `is_complete` tells whether a new version
    may be read, `now` in milliseconds.
    """

    def version(self) -> object: ...

    def is_complete(self, version: object, now: int) -> bool: ...

    def text(self) -> str: ...


class FileSource:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._real_path = ""
        """The file that was read, with all links resolved."""
        self._changed_at = 0
        self._seen: tuple[object, int] = None, 0

    def version(self) -> object:
        """Includes the inode: Kubernetes replaces a mounted Secret by switching a link."""
        try:
            status = stat_regular(self._path)
        except OSError as error:
            raise SecretMissing(unreadable(self._path, error)) from error
        self._changed_at = max(status.st_mtime_ns, status.st_ctime_ns) // 1_000_000
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size

    def is_complete(self, version: object, now: int) -> bool:
        """Whether nobody writes to the file. A file behind a switched link was complete before. Otherwise its own time
        tells; if that time is not by this machine's clock, the same version has to be seen twice.
        """
        if os.path.realpath(self._path) != self._real_path or now - self._changed_at >= UNCHANGED_FOR:
            return True
        if version != self._seen[0]:
            self._seen = version, now
        return now - self._seen[1] >= UNCHANGED_FOR

    def text(self) -> str:
        self._real_path = os.path.realpath(self._path)
        try:
            return read_regular(self._path).decode("ascii")
        except OSError as error:
            raise SecretMissing(unreadable(self._path, error)) from error
        except UnicodeDecodeError as error:
            raise SecretMissing(f"{self._path} holds other characters than ASCII") from error


class EnvironmentSource:
    """An environment variable, which never changes while the process runs."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._value = environ.get(name)

    def version(self) -> object:
        return None

    def is_complete(self, version: object, now: int) -> bool:
        return True

    def text(self) -> str:
        if self._value is None:
            raise SecretMissing("the environment variable that secret_env names is not set")
        return self._value


class Signer:
    """Signs the messages of one route. The constructor raises SecretMissing if there are no usable secrets."""

    def __init__(self, sign: SignSettings, environ: Mapping[str, str]) -> None:
        self._source: SecretSource
        if sign.secret_file is not None:
            self._source = FileSource(sign.secret_file)
        else:
            self._source = EnvironmentSource(sign.secret_env or "", environ)
        self.is_weak = False
        """Whether a shared key is shorter than Standard Webhooks requires."""
        self._signatures: list[Signature] = []
        self._version: object = None
        self._read(self._source.version())

    def headers(self, id: bytes, wall: int, body: bytes) -> bytes:
        """The header lines that sign one attempt. `id` is the message's `webhook-id`. `wall` is the wall clock in
        milliseconds: a verifier compares the timestamp with its own.
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
            if self._source.is_complete(version, now):
                self._read(version)
        except SecretMissing:
            # A removed secret is not used again, even while its replacement is still being written.
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
        self.is_weak = any(not private and len(key) < STRONG_KEY for private, key in keys)
        self._version = version


def _key(secret: str, line: int) -> tuple[bool, bytes]:
    """Returns whether it is a private key, and its bytes."""
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
    # Imported late: it takes seven megabytes.
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise SecretMissing("whsk_ secrets need the cryptography package: install holdfast[ed25519]") from error
    private = Ed25519PrivateKey.from_private_bytes(key[:_SEED])
    return lambda content: b"v1a," + b64encode(private.sign(content))
