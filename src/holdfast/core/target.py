"""The grammar of targets: where a webhook may be sent, spelled in one way only.

    target    = ("http" | "https") "://" authority [path] ["?" query]
    authority = host [":" port]             no userinfo, no percent sign, port 1 to 65535
    host      = name | dotted quad | "[" IPv6 address "]"

Resolvers read more than that as an address (0x7f.1, 2130706433, 127.1, 127。0。0。1), so a host whose last label is a
number must be a dotted quad, and Unicode that would turn into plain ASCII is refused, not normalised. The caller passes
the function that checks names, since international ones need tables: `config.hosts.ascii_name`. IPv6 is written in its
shortest form, and a mapped address ([::ffff:192.0.2.1]) as the IPv4 address that is dialled.

The path keeps its bytes. An error repeats at most the host: webhook URLs are often secrets.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.core.circuit import CircuitRules
from holdfast.core.message import lane_name

DEFAULT_PORTS = {"http": 80, "https": 443}

_URL = re.compile(rb"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_UNSENDABLE = re.compile(rb"[\x00-\x20\x7f\\#]")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([1-9][0-9]{0,4}))?")


class BadTarget(ValueError):
    """A URL that is no target. The text is the problem, to be read after "The target". `secret_free` is the same
    without any part of the URL.
    """

    def __init__(self, problem: str, host: str | None = None) -> None:
        self.secret_free = problem if host is None else f"has a host that {problem}"
        shown = host if host is None or len(host) <= 80 else host[:77] + "..."
        super().__init__(problem if host is None else f'has the host "{shown}", which {problem}')


class Target(NamedTuple):
    """`host` is lower-case ASCII, IPv6 without brackets; `authority` leaves out the scheme's default port."""

    scheme: str
    host: str
    port: int
    authority: str
    path: bytes

    @property
    def host_key(self) -> str:
        """The key of the host's limits: always with the port."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path.decode('ascii')}"


def parse_target(url: bytes | str, ascii_name: Callable[[str], str]) -> Target:
    """The target that a URL names. Raises BadTarget. `ascii_name` returns the one spelling of a name or dotted quad, or
    raises a ValueError that reads after the name.
    """
    if isinstance(url, str):
        url = url.encode("utf-8", "surrogatepass")
    if _UNSENDABLE.search(url):
        raise BadTarget(
            "holds a space, a control character, a backslash or a fragment; leave it out or percent-encode it"
        )
    matched = _URL.fullmatch(url)
    if matched is None:
        raise BadTarget("does not begin with http:// or https://; write it as in https://api.example.com/hooks/7")
    scheme = matched[1].decode("ascii").lower()
    path = matched[3]
    if not path.isascii():
        raise BadTarget("has a path or query with characters other than ASCII; percent-encode them")
    host, port = _host_and_port(matched[2], ascii_name)
    return make_target(scheme, host, port or DEFAULT_PORTS[scheme], path if path[:1] == b"/" else b"/" + path)


def make_target(scheme: str, host: str, port: int, path: bytes) -> Target:
    """A target of parts that are already in their one spelling."""
    name = _bracketed(host)
    authority = name if port == DEFAULT_PORTS[scheme] else f"{name}:{port}"
    return Target(scheme, host, port, authority, path)


def lane_of(target: Target, circuit: CircuitRules) -> str:
    """The key of the circuit that a target belongs to."""
    if circuit.scope == "url" or matches_host(target.host, circuit.url_hosts):
        return lane_name(target.url.partition("?")[0])
    return target.host_key


def matches_host(host: str, patterns: Iterable[str]) -> bool:
    """Whether a host matches one of the patterns (`*`, `*.example.com`, a host), whatever its port."""
    for pattern in patterns:
        if pattern in ("*", host) or (pattern.startswith("*.") and host.endswith(pattern[1:])):
            return True
    return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _host_and_port(authority: bytes, ascii_name: Callable[[str], str]) -> tuple[str, int | None]:
    if b"@" in authority:
        raise BadTarget("holds a user name or password; send credentials in the Authorization header")
    if b"%" in authority:
        raise BadTarget("has a percent sign in its host; write the host unencoded and without a zone id")
    try:
        text = authority.decode("utf-8")
    except UnicodeDecodeError:
        raise BadTarget("has a host that is not UTF-8; write it in ASCII") from None
    matched = _AUTHORITY.fullmatch(text)
    port = int(matched[2] or 0) if matched else 0
    if matched is None or port > 65535:
        raise BadTarget("has a malformed host or port; write host or host:port with a port from 1 to 65535")
    host = matched[1]
    if not host:
        raise BadTarget("has no host; write it as in https://api.example.com/hooks/7")
    try:
        return _ipv6(host) if host.startswith("[") else ascii_name(host), port or None
    except ValueError as error:
        raise BadTarget(str(error), host) from None


def _ipv6(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        raise ValueError("is not an IPv6 address") from None
    return str(address.ipv4_mapped or address)
