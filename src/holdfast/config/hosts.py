"""Host names, host patterns, networks, addresses, URLs and headers: checked, in one spelling each.

Each function takes text and returns its canonical form, or raises BadValue. URLs and header values are often secrets:
no fault repeats them, nor any text that was not understood. The targets of webhooks go through `ascii_name` too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from holdfast.config.faults import BadValue, quoted, show
from holdfast.config.tree import Address, DatabaseUrl
from holdfast.core.target import BadTarget, parse_target

HOST_ALLOWED = 'a host name or an IP address, such as "hooks.example.com"'
PATTERN_ALLOWED = '"*", "*.example.com", a host name or an IP address'
NETWORK_ALLOWED = '"10.0.0.0/8", an IP address, "*.example.com" or a host name'
ADDRESS_ALLOWED = '"host:port" with a port from 0 to 65535, such as "127.0.0.1:8800" or "[::1]:8800"'
URL_ALLOWED = 'an http or https URL, such as "https://hooks.example.com/in"'
PROXY_ALLOWED = '"http://host:port", such as "http://proxy.internal.example:3128"'
HANDOFF_ALLOWED = '"http://host:port", such as "http://holdfast.hooks.example:8800"'
HEADER_ALLOWED = 'names of letters, digits and hyphens with values of visible ASCII, such as { x-team = "billing" }'
DATABASE_ALLOWED = '"postgresql://user:password@host:5432/database", several hosts with commas between them'

LONGEST_NAME = 253

_TOO_LONG = f"is longer than {LONGEST_NAME} characters"
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# With such a last label a resolver reads the whole name as an address: 127.1, 2130706433, 0x7f.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PUNYCODE = "xn--"
_JOINERS = "\u200c\u200d"
_URL_CHARACTERS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"([\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?)?")
_DATABASE_SCHEME = re.compile(r"postgres(?:ql)?://")
_KEY_VALUE_PAIRS = re.compile(r"\s*[a-z_]+\s*=")
_DATABASE_OPTION = r"[a-z_]+=[^@?&=]*"
# No part holds a character that would end it: libpq takes "user:a/b@host" for a host, a port and a database.
_DATABASE_PARTS = re.compile(
    rf"(?:[^@/?]*@)?(?P<hosts>[^@/?]*)(?P<name>/[^@/?]*)?(?:\?{_DATABASE_OPTION}(?:&{_DATABASE_OPTION})*)?"
)
_DATABASE_HOST = re.compile(r"(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]|%2[Ff][^:]*)(?::(?P<port>[0-9]{1,5}))?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")

# Headers of the connection, and those that holdfast writes for every message.
_RESERVED_HEADERS = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("webhook-id", "webhook-timestamp", "webhook-signature"),
    )
)
_RESERVED_PREFIXES = ("holdfast-", "proxy-")


def ascii_name(text: str) -> str:
    """A name or dotted quad as it is looked up: lower case, international labels in the xn-- form of UTS 46.

    Raises a ValueError whose text reads after the name. Characters that stand for plain ASCII (full-width letters,
    ideographic dots) are refused, not mapped: nobody has to guess which name is meant.
    """
    if len(text) > LONGEST_NAME:
        raise ValueError(_TOO_LONG)
    if text.endswith("."):
        raise ValueError("ends with a dot; leave that out")
    labels = [_ascii_label(label) for label in text.split(".")]
    name = ".".join(labels)
    if len(name) > LONGEST_NAME:
        raise ValueError(_TOO_LONG)
    if not _NUMBER.fullmatch(labels[-1]):
        return name
    try:
        return str(ipaddress.IPv4Address(name))
    except ValueError:
        raise ValueError("is an odd spelling of an address; write four decimal numbers") from None


def _ascii_label(label: str) -> str:
    plain = label.lower() if label.isascii() else _mapped(label)
    if plain.startswith(_PUNYCODE):
        _check_international(plain)
    if not _LABEL.fullmatch(plain):
        raise ValueError("is not a host name; its labels are letters, digits and hyphens")
    return plain


def _mapped(label: str) -> str:
    """The xn-- form of a label that is not ASCII, by the mapping of UTS 46 as browsers use it: ß and joiners stay."""
    # Imported late: its tables take half a megabyte.
    import idna

    try:
        name = idna.uts46_remap(label, std3_rules=False)
    except UnicodeError:
        raise ValueError("is not a valid international name") from None
    if name.isascii():
        raise ValueError("has characters that stand for plain ASCII; write those instead")
    return _PUNYCODE + name.encode("punycode").decode("ascii")


def _check_international(label: str) -> None:
    """Whether an xn-- label is the one spelling of a name that UTS 46 finds valid."""
    import idna

    try:
        name = label.removeprefix(_PUNYCODE).encode("ascii").decode("punycode")
        is_valid = (
            not name.isascii()
            and not name.startswith(_PUNYCODE)
            and name == idna.uts46_remap(name, std3_rules=False)
            and label == _PUNYCODE + name.encode("punycode").decode("ascii")
            and idna.check_initial_combiner(name)
            and idna.check_bidi(name)
            and all(idna.valid_contextj(name, at) for at, character in enumerate(name) if character in _JOINERS)
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError("is not a valid international name")


def host_name(text: str) -> str:
    """A name or address in its one spelling, an IPv6 address without brackets."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if (":" in bare and "%" not in bare) or re.fullmatch(r"[0-9.]+", bare):
        try:
            return str(ipaddress.ip_address(bare))
        except ValueError:
            raise BadValue((f"{show(text)} is not an IP address", HOST_ALLOWED)) from None
    if bare is not text:
        raise BadValue((f"{show(text)} is not a host", HOST_ALLOWED))
    try:
        return ascii_name(bare)
    except ValueError as error:
        raise BadValue((f"{show(text)} {error}", HOST_ALLOWED)) from None


def host_pattern(text: str) -> str:
    """`*`, `*.` before a name, or a host."""
    if text == "*":
        return text
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    try:
        host = host_name(name)
    except BadValue:
        raise BadValue((f"{show(text)} is not a host pattern", PATTERN_ALLOWED)) from None
    if star and _is_address(host):
        raise BadValue((f"{quoted(text)} puts a star before an address", PATTERN_ALLOWED))
    return star + host


def network_or_pattern(text: str) -> str:
    """A network or address in its canonical form, or a host pattern other than the bare star."""
    if text == "*":
        raise BadValue(('"*" would match every host', NETWORK_ALLOWED + '; for all addresses "0.0.0.0/0" and "::/0"'))
    if "/" not in text:
        try:
            return host_pattern(text)
        except BadValue:
            raise BadValue((f"{show(text)} is neither a network nor a host pattern", NETWORK_ALLOWED)) from None
    try:
        loose = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise BadValue((f"{show(text)} is not a network", NETWORK_ALLOWED)) from None
    if str(loose.network_address) != str(ipaddress.ip_address(text.partition("/")[0])):
        raise BadValue((f"{quoted(text)} has address bits beyond its prefix", f'"{loose}", or a single address'))
    return str(loose)


DENIED_BY_NAME = (
    "a name is denied by its spelling alone, and another name of the same address passes; to close what it leads to, "
    "name the networks"
)


def names_among(entries: Iterable[str]) -> list[str]:
    """The patterns among networks and patterns: those that match the name of a host."""
    return [entry for entry in entries if "/" not in entry and not _is_address(entry)]


def listen_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    unbracketed_v6 = ":" in host and not host.startswith("[")
    if not colon or unbracketed_v6 or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise BadValue((f"{show(text)} is not an address to listen on", ADDRESS_ALLOWED))
    try:
        return Address(host_name(host), int(port))
    except BadValue:
        raise BadValue((f"{show(text)} has no valid host", ADDRESS_ALLOWED)) from None


def proxy_address(text: str) -> Address:
    """The host and port of a proxy's URL, which is plain http. Credentials are in a file."""
    if "@" in text:
        raise BadValue(("holds credentials; put them into delivery.proxy_credentials_file", PROXY_ALLOWED))
    return _plain_http(text, "is not the URL of an HTTP proxy", PROXY_ALLOWED)


def handoff_address(text: str) -> Address:
    """The host and port of another holdfast's ingest: plain http, with a token instead of a password."""
    if "@" in text:
        raise BadValue(("holds credentials; what is shown there is the token of ingest.token_file", HANDOFF_ALLOWED))
    return _plain_http(text, "is not the ingest address of another holdfast", HANDOFF_ALLOWED)


def _plain_http(text: str, otherwise: str, allowed: str) -> Address:
    found = re.fullmatch(r"http://([^/?#]+)/?", text, re.IGNORECASE)
    if found is None:
        raise BadValue((f"{show(text)} {otherwise}", allowed))
    try:
        address = listen_address(found[1])
    except BadValue:
        raise BadValue((f"{show(text)} has no valid host and port", allowed)) from None
    if address.port == 0:
        raise BadValue((f"{show(text)} has port 0", allowed))
    return address


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def route_url(text: str) -> str:
    """The URL unchanged, once every part of it can be sent as written."""
    if not _URL_CHARACTERS.fullmatch(text):
        raise BadValue(("holds characters that a URL can't; percent-encode them", URL_ALLOWED))
    if "#" in text:
        raise BadValue(("has a fragment, which is never sent", URL_ALLOWED))
    try:
        parse_target(text, ascii_name)
    except BadTarget as error:
        raise BadValue((error.secret_free, URL_ALLOWED)) from None
    return text


def database_url(text: str) -> DatabaseUrl:
    """The URL of a database, as libpq reads its shape. Its options are judged where it is used. It holds a password, so
    no fault repeats a part of it.
    """
    scheme = _DATABASE_SCHEME.match(text)
    if scheme is None:
        pairs = "a list of key=value pairs, " if _KEY_VALUE_PAIRS.match(text) else ""
        raise BadValue((f"is {pairs}not a postgresql:// URL", DATABASE_ALLOWED))
    if not text.isprintable() or " " in text:
        raise BadValue(("holds a space or a line break, perhaps at its end", DATABASE_ALLOWED))
    if _BAD_PERCENT.search(text):
        raise BadValue(("has a percent sign that encodes nothing; the sign itself is written %25", DATABASE_ALLOWED))
    parts = _DATABASE_PARTS.fullmatch(text, scheme.end())
    if parts is None:
        problem = "can't be read; in a name or password @ is written %40, / is %2F and ? is %3F, in an option = is %3D"
        raise BadValue((problem, DATABASE_ALLOWED))
    if not all(_is_database_host(host) for host in parts["hosts"].split(",")):
        raise BadValue(("has a host or port that is none", DATABASE_ALLOWED))
    return DatabaseUrl(text, f"postgresql://{parts['hosts']}{parts['name'] or ''}")


def _is_database_host(text: str) -> bool:
    found = _DATABASE_HOST.fullmatch(text)
    return found is not None and (found["port"] is None or 1 <= int(found["port"]) <= 65535)


def route_headers(table: dict[str, object]) -> tuple[tuple[str, str], ...]:
    """Header pairs as written. Each header that can't be sent is a reason of its own."""
    reasons: list[tuple[str, str]] = []
    seen: set[str] = set()
    for number, (name, value) in enumerate(table.items(), 1):
        problem = _header_problem(name, value)
        if problem is None and name.lower() in seen:
            problem = "is given twice"
        if problem is not None:
            # Text that is not a header name may be a whole header with its value.
            shown = f"the header {quoted(name)}" if _HEADER_NAME.fullmatch(name) else f"header {number}"
            reasons.append((f"{shown} {problem}", HEADER_ALLOWED))
        seen.add(name.lower())
    if reasons:
        raise BadValue(*reasons)
    return tuple((name, str(value)) for name, value in table.items())


def _header_problem(name: str, value: object) -> str | None:
    if not _HEADER_NAME.fullmatch(name):
        return "has a name that HTTP does not allow"
    if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIXES):
        return "is holdfast's own to write"
    if not isinstance(value, str):
        return "has a value that is not text"
    if not _HEADER_VALUE.fullmatch(value):
        return "has a value with a line break, another invisible character, or a space at its end"
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
