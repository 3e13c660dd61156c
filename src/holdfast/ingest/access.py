"""Who may send to ingest. The head alone decides, before any of the body is read.

Clients that reach a local port are trusted, except browsers: a web page must not send webhooks in the app's name,
neither with a request of its own (`Origin`, `Sec-Fetch-Site`) nor with a name that it resolves to this machine
(`Host`). If a token is set, the token decides instead of `Host`. `Authorization` is never read: it belongs to the
receiver.
"""

import re
from collections.abc import Iterable
from hmac import compare_digest
from pathlib import Path

from holdfast.config import Address, ConfigError, ConfigFault, read_regular, unreadable
from holdfast.core.target import Target
from holdfast.http.codec import RequestHead
from holdfast.ingest.refusals import BROWSER, NO_HANDOFF, WRONG_HOST, WRONG_METHOD, WRONG_TOKEN, Refused

METHODS = ("POST", "PUT", "PATCH", "DELETE")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

_ALLOW = ((b"allow", ", ".join(METHODS).encode()),)
_HANDOFF = b"holdfast-handoff"
_CHECKED = frozenset((b"origin", b"sec-fetch-site", b"host", b"holdfast-token", b"proxy-authorization", _HANDOFF))
_TOKEN = re.compile(rb"[\x21-\x7e]+")


def read_token(path: Path) -> bytes:
    """Reads a token from a file, without the white space around it."""
    try:
        token = read_regular(path).strip()
    except OSError as error:
        raise ConfigError([ConfigFault("ingest.token_file", unreadable(path, error))]) from error
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            [ConfigFault("ingest.token_file", f"{path} holds no token", "one line of visible ASCII characters")]
        )
    return token


class OwnAddress:
    """The names and the port of this sidecar. `listening` is the listener's address, `hosts` is `ingest.hosts`."""

    def __init__(self, listening: Address, hosts: Iterable[str]) -> None:
        self.listening = listening
        self._names = frozenset({*LOCAL_NAMES, listening.host, *hosts})
        spelled = [f"[{name}]" if ":" in name else name for name in self._names]
        with_port = [f"{name}:{listening.port}" for name in spelled]
        self._host_values = frozenset(name.encode() for name in spelled + with_port)

    def matches_host(self, host_header: bytes) -> bool:
        return host_header.lower() in self._host_values

    def is_target(self, target: Target) -> bool:
        """Stricter than `Host`: a local name with another port is another service on this machine."""
        return target.scheme == "http" and target.port == self.listening.port and target.host in self._names


class AccessCheck:
    def __init__(self, own_address: OwnAddress, token: bytes | None) -> None:
        self._own_address = own_address
        self._token = token

    def check(self, head: RequestHead) -> None:
        checked: dict[bytes, bytes] = {}
        for name, value in head.headers:
            if name in _CHECKED:
                # Repeated headers are joined, so that a second value can't hide the first.
                checked[name] = checked[name] + b", " + value if name in checked else value
        if _HANDOFF in checked:
            # Its headers are those of the message, of any kind. The token proves that no browser sent them.
            self._check_handoff(head, checked)
            return
        if b"origin" in checked or checked.get(b"sec-fetch-site", b"none") != b"none":
            raise Refused(
                BROWSER,
                "Webhooks are sent by servers: send the request from the app's backend, without Origin or "
                "Sec-Fetch-Site.",
            )
        if head.method not in METHODS:
            raise self._wrong_method(head.method)
        is_absolute = head.target[:1] != b"/"
        if self._token is not None:
            self._check_token(checked, is_absolute, self._token)
        elif not is_absolute and not self._own_address.matches_host(checked.get(b"host", b"")):
            raise Refused(
                WRONG_HOST,
                f"Send the request to {self._own_address.listening}, or add the name in Host to ingest.hosts.",
            )

    def _check_handoff(self, head: RequestHead, checked: dict[bytes, bytes]) -> None:
        if head.method not in METHODS:
            raise self._wrong_method(head.method)
        if self._token is None:
            raise Refused(
                NO_HANDOFF,
                "Another holdfast may hand messages over only with a token: set ingest.token_file here, to the same "
                "token as there.",
            )
        self._check_token(checked, False, self._token)

    def _check_token(self, checked: dict[bytes, bytes], is_absolute: bool, token: bytes) -> None:
        # A client behind http_proxy uses the absolute form also for the sidecar itself, so both headers count there.
        offered = [checked.get(b"holdfast-token", b"")]
        if is_absolute:
            offered.append(_bearer(checked.get(b"proxy-authorization", b"")))
        if not any(compare_digest(each, token) for each in offered):
            raise Refused(
                WRONG_TOKEN,
                "Send the token of ingest.token_file in Holdfast-Token, or in proxy form as "
                "Proxy-Authorization: Bearer.",
            )

    def _wrong_method(self, method: str) -> Refused:
        if method != "CONNECT":
            return Refused(WRONG_METHOD, f"Send the webhook with {', '.join(METHODS)}.", _ALLOW)
        here = f"http://{self._own_address.listening}"
        return Refused(
            WRONG_METHOD,
            "A tunnel would hide the webhook from holdfast. For an https target in proxy form, send to its "
            "http:// URL and list the host in ingest.proxy_hosts and ingest.upgrade_to_https; or prefix the "
            f"URL, as in {here}/https://api.example.com/hooks/7.",
            _ALLOW,
        )


def _bearer(credentials: bytes) -> bytes:
    scheme, _, token = credentials.partition(b" ")
    return token.strip(b" ") if scheme.lower() == b"bearer" else b""
