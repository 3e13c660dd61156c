"""An answer as a transport gives it, for stand-ins of a transport."""

from typing import NamedTuple

from holdfast.http.message import Headers


class GivenAnswer(NamedTuple):
    status: int
    headers: Headers
    body: bytes
    address: str
    reused: bool = False
    complete: bool = True
