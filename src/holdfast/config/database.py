"""The URL of a database: its shape, as libpq reads it, and what of it may be shown.

What its options mean is for whoever connects to judge. It holds a password, so no fault ever repeats a part of it.
"""

from __future__ import annotations

import re

from holdfast.config.faults import BadValue
from holdfast.config.tree import DatabaseUrl

ALLOWED = '"postgresql://user:password@host:5432/database", several hosts with commas between them'

_SCHEME = re.compile(r"postgres(?:ql)?://")
_PAIRS = re.compile(r"\s*[a-z_]+\s*=")
_OPTION = r"[a-z_]+=[^@?&=]*"
# No part holds a character that would end it: libpq takes "user:a/b@host" for a host, a port and a database.
_PARTS = re.compile(rf"(?:[^@/?]*@)?(?P<hosts>[^@/?]*)(?P<name>/[^@/?]*)?(?:\?{_OPTION}(?:&{_OPTION})*)?")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]|%2[Ff][^:]*)(?::(?P<port>[0-9]{1,5}))?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")


def database_url(text: str) -> DatabaseUrl:
    scheme = _SCHEME.match(text)
    if scheme is None:
        pairs = "a list of key=value pairs, " if _PAIRS.match(text) else ""
        raise BadValue((f"is {pairs}not a postgresql:// URL", ALLOWED))
    if not text.isprintable() or " " in text:
        raise BadValue(("holds a space or a line break, perhaps at its end", ALLOWED))
    if _BAD_PERCENT.search(text):
        raise BadValue(("has a percent sign that encodes nothing; the sign itself is written %25", ALLOWED))
    parts = _PARTS.fullmatch(text, scheme.end())
    if parts is None:
        problem = "can't be read; in a name or password @ is written %40, / is %2F and ? is %3F, in an option = is %3D"
        raise BadValue((problem, ALLOWED))
    if not all(_is_host(host) for host in parts["hosts"].split(",")):
        raise BadValue(("has a host or port that is none", ALLOWED))
    return DatabaseUrl(text, f"postgresql://{parts['hosts']}{parts['name'] or ''}")


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found["port"] is None or 1 <= int(found["port"]) <= 65535)
