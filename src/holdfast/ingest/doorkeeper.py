"""Who may speak to ingest, decided on the head alone, before any of the body is read.

Whoever reaches a local port is trusted, except through a browser: a page must not send webhooks in the
app's name, neither by a request of its own (`Origin`, `Sec-Fetch-Site`) nor by a name that it made resolve
to this machine (`Host`). With a token set, the token alone decides. `Authorization` is never looked at: it
belongs to the receiver.
"""

import re
from hmac import compare_digest
from pathlib import Path

from holdfast.config import ConfigError, Fault, read_regular, unreadable
from holdfast.http.codec import RequestHead
from holdfast.ingest.refusals import BROWSER, NO_HANDOFF, WRONG_HOST, WRONG_METHOD, WRONG_TOKEN, Refused
from holdfast.ingest.sidecar import Sidecar

METHODS = ("POST", "PUT", "PATCH", "DELETE")

_ALLOW = ((b"allow", ", ".join(METHODS).encode()),)
_HANDOFF = b"holdfast-handoff"
_WATCHED = frozenset((b"origin", b"sec-fetch-site", b"host", b"holdfast-token", b"proxy-authorization", _HANDOFF))
_TOKEN = re.compile(rb"[\x21-\x7e]+")


def read_token(path: Path) -> bytes:
    """The token in a file, without the white space around it."""
    try:
        token = read_regular(path).strip()
    except OSError as error:
        raise ConfigError([Fault("ingest.token_file", unreadable(path, error))]) from error
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            [Fault("ingest.token_file", f"{path} holds no token", "one line of visible ASCII characters")]
        )
    return token


class Doorkeeper:
    def __init__(self, sidecar: Sidecar, token: bytes | None) -> None:
        self._sidecar = sidecar
        self._token = token

    def check(self, head: RequestHead) -> None:
        watched: dict[bytes, bytes] = {}
        for name, value in head.headers:
            if name in _WATCHED:
                # Said twice, each counts: no second value may hide what the first one gives away.
                watched[name] = watched[name] + b", " + value if name in watched else value
        if _HANDOFF in watched:
            # Its headers are the message's own, of whatever kind: the token shows that no browser sent them.
            self._check_handoff(head, watched)
            return
        if b"origin" in watched or watched.get(b"sec-fetch-site", b"none") != b"none":
            raise Refused(
                BROWSER,
                "Webhooks are sent by servers: send the request from the app's backend, without Origin or "
                "Sec-Fetch-Site.",
            )
        if head.method not in METHODS:
            raise self._wrong_method(head.method)
        is_absolute = head.target[:1] != b"/"
        if self._token is not None:
            self._check_token(watched, is_absolute, self._token)
        elif not is_absolute and not self._sidecar.answers_to(watched.get(b"host", b"")):
            raise Refused(
                WRONG_HOST,
                f"Send the request to {self._sidecar.listening}, or add the name in Host to ingest.hosts.",
            )

    def _check_handoff(self, head: RequestHead, watched: dict[bytes, bytes]) -> None:
        if head.method not in METHODS:
            raise self._wrong_method(head.method)
        if self._token is None:
            raise Refused(
                NO_HANDOFF,
                "Another holdfast may hand messages over only with a token: set ingest.token_file here, to the same "
                "token as there.",
            )
        self._check_token(watched, False, self._token)

    def _check_token(self, watched: dict[bytes, bytes], is_absolute: bool, token: bytes) -> None:
        # A client behind http_proxy speaks to the sidecar itself in absolute form too: both are good there.
        offered = [watched.get(b"holdfast-token", b"")]
        if is_absolute:
            offered.append(_bearer(watched.get(b"proxy-authorization", b"")))
        if not any(compare_digest(each, token) for each in offered):
            raise Refused(
                WRONG_TOKEN,
                "Send the token of ingest.token_file in Holdfast-Token, or in proxy form as "
                "Proxy-Authorization: Bearer.",
            )

    def _wrong_method(self, method: str) -> Refused:
        if method != "CONNECT":
            return Refused(WRONG_METHOD, f"Send the webhook with {', '.join(METHODS)}.", _ALLOW)
        here = f"http://{self._sidecar.listening}"
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
