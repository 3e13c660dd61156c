"""TLS to receivers: verification is always on, the version is at least 1.2, each route may have a client certificate.

Handshakes run on the loop, so a receiver must not decide how much CPU one takes: neither by the size of Diffie-Hellman
numbers nor by repeated handshakes on one connection.

Files are read at start, so that a bad one is reported then. Every attempt of a route checks whether the files of its
client certificate changed; the last certificate and key that fit each other are used.
"""

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from holdfast.config import read_regular, stat_regular, unreadable
from holdfast.delivery.egress import ROUTE_ZONE
from holdfast.http.dial import Origin


class UnusableFile(Exception):
    """A file with credentials can't be used; the text says why."""


class ClientCertificate:
    """The client certificate of one route. `zone` changes with it, so that no connection outlives its certificate."""

    def __init__(self, route: str, cert_file: Path, key_file: Path | None) -> None:
        self._route = route
        self._cert_file, self._key_file = cert_file, key_file
        self._number = 0
        self._version = self._read_version()
        self.context = self._load()

    @property
    def zone(self) -> str:
        # Files that do not fit each other may be in the middle of a replacement.
        with suppress(UnusableFile):
            version = self._read_version()
            if version != self._version:
                self.context = self._load()
                self._version, self._number = version, self._number + 1
        return f"{ROUTE_ZONE} {self._route} {self._number}"

    def _load(self) -> ssl.SSLContext:
        context = _new_context()
        # Some servers ask for a certificate in a second handshake, when they know the path.
        context.options &= ~ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(self._cert_file, self._key_file, password=_refuse_to_ask)
        except ssl.SSLError as error:
            raise UnusableFile(f"{self._cert_file} and its key can't be used: {error.reason or error}") from error
        except OSError as error:
            raise UnusableFile(f"{self._cert_file} or its key can't be read: {error.strerror}") from error
        return context

    def _read_version(self) -> list[tuple[int, int, int]]:
        found = [_stat(path) for path in (self._cert_file, self._key_file) if path is not None]
        return [(status.st_mtime_ns, status.st_ino, status.st_size) for status in found]


class Contexts:
    """The TLS contexts of connections. A context loads the system's authorities at first use: they take megabytes."""

    def __init__(self, ca_file: Path | None, certificates: Mapping[str, ClientCertificate]) -> None:
        self._authorities = _read_authorities(ca_file) if ca_file is not None else None
        self._certificates = certificates
        self._plain = _new_context()
        self._trusting: dict[str, ssl.SSLContext] = {}

    def context(self, origin: Origin) -> ssl.SSLContext:
        """`origin.zone` is the `zone` of a client certificate, or anything else if there is none."""
        route = origin.zone.removeprefix(ROUTE_ZONE).strip().partition(" ")[0]
        certificate = self._certificates.get(route)
        context = self._plain if certificate is None else certificate.context
        if self._trusting.get(route) is not context:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            if self._authorities is not None:
                context.load_verify_locations(cadata=self._authorities)
            self._trusting[route] = context
        return context


def _stat(path: Path) -> os.stat_result:
    try:
        return stat_regular(path)
    except OSError as error:
        raise UnusableFile(unreadable(path, error)) from error


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A common name is free text: an authority may write names there that it may not certify.
    context.hostname_checks_common_name = False
    # With DHE the receiver chooses the prime: one of 10,000 bits takes a second.
    quick = [cipher["name"] for cipher in context.get_ciphers() if cipher["kea"] != "kx-dhe"]
    context.set_ciphers(":".join(quick))
    return context


def _read_authorities(path: Path) -> str:
    try:
        text = read_regular(path).decode("ascii", "replace")
        _new_context().load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise UnusableFile(f"{path} holds no certificates in PEM form") from error
    except OSError as error:
        raise UnusableFile(unreadable(path, error)) from error
    return text


def _refuse_to_ask() -> NoReturn:
    """Without this, OpenSSL would ask for the password of an encrypted key on the terminal, and wait."""
    raise UnusableFile("the key is encrypted; holdfast needs it without a password")
