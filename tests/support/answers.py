"""An answer as `http.transport` returns it, for fake transports."""

from typing import NamedTuple

from holdfast.http.request_response import Headers


class GivenAnswer(NamedTuple):
    status: int
    headers: Headers
    body: bytes
    address: str
    reused: bool = False
    complete: bool = True
