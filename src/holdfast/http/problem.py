"""Refusals that a client can read: RFC 9457 problem documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from holdfast.http.message import Response

RETRY_SOON = ((b"retry-after", b"1"),)
"""For what another request frees as it ends."""


class Problem(Exception):
    """Raised by a handler or a gate; the server answers with it.

    `type` is a stable name such as "urn:holdfast:problem:no-target"; `detail` says what to change; `headers`
    are sent along (`Retry-After`); `extra` members join the document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        type: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, title, detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.type = type
        self.headers = tuple(headers)
        self.extra = dict(extra or {})

    def __str__(self) -> str:
        return f"{self.status} {self.title}: {self.detail}"

    @property
    def document(self) -> dict[str, Any]:
        return {
            **self.extra,
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }

    def response(self) -> Response:
        headers = [(b"content-type", b"application/problem+json"), *self.headers]
        return Response(self.status, headers, json.dumps(self.document).encode())


def problem_for_status(status: int, detail: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> Problem:
    """A problem that its status code names well enough, as the server's own refusals are."""
    title = HTTPStatus(status).phrase
    slug = title.lower().replace(" ", "-")
    return Problem(status, title, detail, type=f"urn:holdfast:problem:{slug}", headers=headers)
