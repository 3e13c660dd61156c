"""The control socket: documents, and lists followed page by page."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.cli.peer import ANSWER_PATIENCE, Peer
from holdfast.cli.times import gateway_time

PAGE = 200
"""Items asked for at a time: few enough to show the first ones at once, enough to make a million bearable."""

Document = dict[str, Any]


class Gateway:
    def __init__(self, socket: Path) -> None:
        self._peer = Peer(str(socket), is_socket=True)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._peer.__exit__(kind, error, trace)

    def now(self) -> datetime:
        """By the gateway's clock: its times are told from there, and "2h ago" means two hours of its time."""
        return gateway_time(self.get("/v1/status"))

    def get(self, path: str) -> Document:
        return self._document("GET", path)

    def post(self, path: str, body: Document, patience: float | None = ANSWER_PATIENCE) -> Document:
        """`patience` in seconds; None to wait for as long as the gateway takes."""
        return self._document("POST", path, json.dumps(body).encode(), patience)

    def delete(self, path: str) -> Document:
        return self._document("DELETE", path)

    def lines(self, path: str) -> Iterator[bytes]:
        """A stream of JSON, one document a line, as they come."""
        return self._peer.lines(path)

    def pages(
        self, collection: str, query: Mapping[str, str | None], limit: int | None = None
    ) -> Iterator[list[Document]]:
        """A list in pages, each fetched when the one before it was used; at most `limit` items in all."""
        wanted = {name: value for name, value in query.items() if value is not None}
        left = limit
        while True:
            wanted["limit"] = str(PAGE if left is None else min(PAGE, left))
            document = self.get(f"/v1/{collection}?{urlencode(wanted, errors='surrogateescape')}")
            items: list[Document] = document[collection]
            yield items
            if left is not None:
                left -= len(items)
            if document["next"] is None or left == 0:
                return
            wanted["after"] = document["next"]

    def _document(
        self, method: str, path: str, content: bytes = b"", patience: float | None = ANSWER_PATIENCE
    ) -> Document:
        headers = [(b"accept", b"application/json")]
        if content:
            headers.append((b"content-type", b"application/json"))
        response = self._peer.exchange(method, path, headers, content, patience)
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self._peer.stranger()
        return document


def segment(name: str) -> str:
    """A circuit's key or a message's id as one segment of a path: a key may be a whole URL."""
    return quote(name, safe="", errors="surrogateescape")
