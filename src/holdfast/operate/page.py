"""The page for people: one static file, read once, with headers that let it do nothing but ask this gateway.

The policy names the page's style and script by their hashes, so nothing that a receiver or an app wrote could ever run,
even if the page had a hole; trusted types forbid it to make markup of text at all.
"""

import base64
import hashlib
import re
from pathlib import Path

from holdfast.http.server import Response
from holdfast.operate.routing import Call

_PAGE = Path(__file__).with_name("page.html").read_bytes()


def _hash(tag: bytes) -> str:
    """The only inline block of this kind, as a policy names it."""
    (block,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), _PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(block).digest()).decode()}'"


POLICY = "; ".join(
    [
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",  # the icon in the tab, which shows the state
        f"style-src {_hash(b'style')}",
        f"script-src {_hash(b'script')}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)

PAGE = Response(
    200,
    [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    ],
    _PAGE,
)


async def page(call: Call) -> Response:
    return PAGE
