"""Readers: each turns a TOML value into a Config value, or raises BadValue with what is allowed.

Types are strict: a bool is no number, and a duration or size is text with a unit. `from_text` first turns the text of
an environment variable or a flag into a TOML value, so that one `read` judges them all. A reader whose result may be
None takes "" for "not set".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import hosts
from holdfast.config.faults import BadValue, quoted, show
from holdfast.config.tree import SignSettings

GROUP_ALLOWED = 'a group\'s name or number, such as "ops"'
USER_AGENT_ALLOWED = 'visible ASCII, such as "shop-webhooks/2.1"'


def toml_value(text: str) -> object:
    """The text as a TOML value. Text that is none stays text: the reader refuses it."""
    # Needed only when a number, list or table comes from outside the file.
    import tomllib

    try:
        table = tomllib.loads(f"value = {text.strip()}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def toml_list(text: str) -> object:
    """A TOML array, or items between commas."""
    if text.strip().startswith("["):
        return toml_value(text)
    return [item.strip() for item in text.split(",")] if text.strip() else []


@dataclass(frozen=True, slots=True)
class Reader:
    read: Callable[[object], object]
    from_text: Callable[[str], object] = str


def _text(value: object, allowed: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise BadValue(("is a number, not text in quotes", allowed))
    raise BadValue((f"{show(value)} is not text", allowed))


def _quantity(
    parse: Callable[[str], int],
    spell: Callable[[int], str],
    allowed: str,
    minimum: int,
    *,
    unset: bool = False,
) -> Reader:
    def read(value: object) -> int | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise BadValue((f"{show(value)} is a number without a unit", allowed))
        text = _text(value, allowed)
        if unset and not text:
            return None
        try:
            amount = parse(text)
        except ValueError as error:
            raise BadValue((str(error), allowed)) from None
        if amount < minimum:
            raise BadValue((f"{quoted(text)} is too small", f'at least "{spell(minimum)}"'))
        return amount

    return Reader(read)


def duration(minimum: str = "1ms", *, unset: bool = False) -> Reader:
    return _quantity(parse_duration, format_duration, DURATION_ALLOWED, parse_duration(minimum), unset=unset)


def size(minimum: str) -> Reader:
    return _quantity(parse_size, format_size, SIZE_ALLOWED, parse_size(minimum))


def integer(minimum: int, maximum: int | None = None) -> Reader:
    upper = "" if maximum is None else f" to {maximum}"
    allowed = f"a whole number from {minimum}{upper}" + (" up" if maximum is None else "")

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadValue((f"{show(value)} is not a whole number", allowed))
        if value < minimum or (maximum is not None and value > maximum):
            raise BadValue((f"{show(value)} is out of range", allowed))
        return value

    return Reader(read, toml_value)


def number(maximum: int, *, above_zero: bool = False) -> Reader:
    """A number from zero, or above it, to the maximum."""
    allowed = f"a number {'above' if above_zero else 'from'} 0 to {maximum}"

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValue((f"{show(value)} is not a number", allowed))
        # Written this way, NaN is out of range as well.
        if not 0 <= value <= maximum or (above_zero and value == 0):
            raise BadValue((f"{show(value)} is out of range", allowed))
        return float(value)

    return Reader(read, toml_value)


def choice(*options: str | int) -> Reader:
    spelled = [quoted(option) if isinstance(option, str) else str(option) for option in options]
    allowed = ", ".join(spelled[:-1]) + f" or {spelled[-1]}"

    def read(value: object) -> str | int:
        for option in options:
            # By type too: true equals 1, and 202.0 equals 202.
            if type(value) is type(option) and value == option:
                return option
        raise BadValue((f"{show(value)} is not one of the choices", allowed))

    return Reader(read, str if isinstance(options[0], str) else toml_value)


def many(item: Callable[[str], str], allowed: str) -> Reader:
    """A list of text items without repeats. Each bad item is a reason of its own, named by its place."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise BadValue((f"{show(value)} is not a list", f"a list of {allowed}"))
        items: dict[str, None] = {}
        reasons: list[tuple[str, str]] = []
        for number, element in enumerate(value, 1):
            try:
                items[item(_text(element, allowed))] = None
            except BadValue as error:
                reasons += [(f"item {number}: {problem}", what) for problem, what in error.reasons]
        if reasons:
            raise BadValue(*reasons)
        return tuple(items)

    return Reader(read, toml_list)


def _read_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue((f"{show(value)} is neither true nor false", "true or false"))
    return value


def _read_ports(value: object) -> tuple[int, ...] | None:
    allowed = 'port numbers from 1 to 65535, such as [443, 80], or ["*"] for any'
    if not isinstance(value, list):
        raise BadValue((f"{show(value)} is not a list", allowed))
    bad = [port for port in value if port != "*" and not (type(port) is int and 1 <= port <= 65535)]
    if bad:
        raise BadValue(*((f"{show(port)} is not a port", allowed) for port in bad))
    return None if "*" in value else tuple(dict.fromkeys(value))


def _ports_from_text(text: str) -> object:
    items = toml_list(text)
    if text.strip().startswith("[") or not isinstance(items, list):
        return items
    return [item if item == "*" else toml_value(item) for item in items]


def parsed(parse: Callable[[str], object], allowed: str, *, unset: bool = False) -> Reader:
    """Text that `parse` understands. With `unset`, "" is None."""

    def read(value: object) -> object:
        text = _text(value, allowed)
        return None if unset and not text else parse(text)

    return Reader(read)


def _path(text: str) -> Path | None:
    if "\0" in text:
        raise BadValue((f"{show(text)} is not a path", "a path without NUL"))
    return Path(text) if text else None


def _group(text: str) -> str:
    # The names that useradd and directory services take. Whether the group exists shows where it is used.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", text):
        raise BadValue((f"{show(text)} is not a group", GROUP_ALLOWED))
    return text


def _user_agent(text: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", text):
        raise BadValue((f"{show(text)} can't be sent as a header", USER_AGENT_ALLOWED))
    return text


def _read_headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise BadValue(("is not a table", hosts.HEADER_ALLOWED))
    return hosts.route_headers(value)


def _read_sign(value: object) -> SignSettings | None:
    allowed = '{ scheme = "standard-webhooks", secret_file = "/run/secrets/billing" }, or secret_env with a name'
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadValue(("is not a table", allowed))
    if value.keys() - {"scheme", "secret_file", "secret_env"}:
        raise BadValue(("has another key than scheme, secret_file and secret_env", allowed))
    scheme = value.get("scheme", "standard-webhooks")
    if scheme != "standard-webhooks":
        raise BadValue(("names an unknown scheme", '"standard-webhooks"'))
    secret_file = _path(_text(value.get("secret_file", ""), "a path"))
    secret_env = _text(value.get("secret_env", ""), allowed)
    if bool(secret_file) == bool(secret_env):
        problem = "names both secret_file and secret_env" if secret_file else "names no secret_file or secret_env"
        raise BadValue((problem, "one of the two"))
    if secret_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", secret_env):
        raise BadValue(("secret_env is not the name of an environment variable", allowed))
    return SignSettings("standard-webhooks", secret_file, secret_env or None)


BOOLEAN = Reader(_read_boolean, toml_value)
PATH = parsed(_path, "a path")
ADDRESS = parsed(hosts.listen_address, hosts.ADDRESS_ALLOWED)
OPTIONAL_ADDRESS = parsed(hosts.listen_address, hosts.ADDRESS_ALLOWED, unset=True)
GROUP = parsed(_group, GROUP_ALLOWED, unset=True)
HOSTS = many(hosts.host_name, hosts.HOST_ALLOWED)
PATTERNS = many(hosts.host_pattern, hosts.PATTERN_ALLOWED)
NETWORKS = many(hosts.network_or_pattern, hosts.NETWORK_ALLOWED)
PORTS = Reader(_read_ports, _ports_from_text)
USER_AGENT = parsed(_user_agent, USER_AGENT_ALLOWED, unset=True)
URL = parsed(hosts.route_url, hosts.URL_ALLOWED)
PROXY = parsed(hosts.proxy_address, hosts.PROXY_ALLOWED, unset=True)
HANDOFF = parsed(hosts.handoff_address, hosts.HANDOFF_ALLOWED, unset=True)
DATABASE = parsed(hosts.database_url, hosts.DATABASE_ALLOWED, unset=True)
SIGN = Reader(_read_sign, toml_value)
HEADERS = Reader(_read_headers, toml_value)


# From the smallest unit to the largest: the formatters rely on this order.
DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

DURATION_ALLOWED = 'a number with ms, s, m, h or d, such as "84800ms"'
SIZE_ALLOWED = 'a number with B, KiB, MiB, GiB or TiB, such as "1MiB"'

# After a century, due times would leave the range of dates.
LONGEST_DURATION = 36_500 * DURATIONS["d"]
LARGEST_SIZE = 1024 * SIZES["TiB"]

_QUANTITY = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?([A-Za-z]+)")


def parse_duration(text: str) -> int:
    """Milliseconds of "250ms", "30s", "1.5h". Raises ValueError if it is not exact, or over 100 years."""
    milliseconds = _parse(text, DURATIONS)
    if milliseconds is None:
        raise ValueError(f"{show(text)} is not a duration")
    if milliseconds > LONGEST_DURATION:
        raise ValueError(f"{quoted(text)} is longer than 100 years")
    return milliseconds


def parse_size(text: str) -> int:
    """Bytes of "512B", "1MiB", "1.5GiB". Raises ValueError if it is not exact, or over 1024 TiB."""
    size = _parse(text, SIZES)
    if size is None:
        raise ValueError(f"{show(text)} is not a size")
    if size > LARGEST_SIZE:
        raise ValueError(f"{quoted(text)} is larger than 1024TiB")
    return size


def format_duration(milliseconds: int) -> str:
    """The shortest exact spelling with one whole number: 84800 -> "84800ms", 600000 -> "10m"."""
    return _format(milliseconds, DURATIONS) if milliseconds else "0s"


def format_size(size: int) -> str:
    """The shortest exact spelling with one whole number: 1048576 -> "1MiB"."""
    return _format(size, SIZES) if size else "0B"


def _parse(text: str, units: dict[str, int]) -> int | None:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[3] not in units:
        return None
    unit = units[match[3]]
    decimals = match[2] or ""
    # Whole numbers only: as a float "84.8s" might become 84799.
    fraction, inexact = divmod(int(decimals or "0") * unit, 10 ** len(decimals))
    return None if inexact else int(match[1]) * unit + fraction


def _format(amount: int, units: dict[str, int]) -> str:
    name = next(name for name in reversed(units) if amount % units[name] == 0)
    return f"{amount // units[name]}{name}"
