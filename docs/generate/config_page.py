"""config.md and config/holdfast.toml: every key of `config.keys` with its default and meaning."""

import re
from textwrap import wrap

from holdfast.config.build import PREFIX
from holdfast.config.faults import BadValue
from holdfast.config.keys import REQUIRED, ROUTE, SECTIONS, Key

INTRODUCTION = f"""\
# Config reference

Written by `make docs` from the code. [config/holdfast.toml](../config/holdfast.toml) has the same keys to copy from.

- No config at all is a valid config. A file is TOML, named by `--config FILE` or `HOLDFAST_CONFIG`.
- Every key also works as an environment variable: `delivery.per_host` is `{PREFIX}DELIVERY__PER_HOST`; lists with
  commas. And as a flag: `holdfast run --set delivery.per_host=8`.
- Flags win over the environment, the environment over the file, the file over the defaults.
- Unknown keys and bad values are reported all at once, with exit status 2. `holdfast check FILE` does only that.
- A duration is a number with `ms`, `s`, `m`, `h` or `d`; a size one with `B`, `KiB`, `MiB`, `GiB` or `TiB`.
  `""` means "not set".
- `holdfast reload` and SIGHUP take over all keys but those with a *restart* mark.
"""

ROUTES = """\
## [routes.NAME]

Named targets: `POST /to/NAME/...` goes to the url with the rest of the path appended. NAME is small letters, digits,
`_` and `-`.
"""


class Nothing:
    """A value that no reader takes."""

    def __repr__(self) -> str:
        return "nothing"


def page() -> str:
    sections = [f"## [{name}]\n\n{table(section.keys)}" for name, section in SECTIONS.items()]
    return "\n".join([INTRODUCTION, *sections, f"{ROUTES}\n{table(ROUTE)}"])


def table(keys: dict[str, Key]) -> str:
    rows = [f"| {name} | {default(key)} | {allowed(key)} | {meaning(key)} |\n" for name, key in keys.items()]
    return "| key | default | allowed | what it is |\n| --- | --- | --- | --- |\n" + "".join(rows)


def default(key: Key) -> str:
    if key.default is REQUIRED:
        return "required"
    return "none" if key.default is None else f"`{spelled(key.default)}`"


def spelled(value: object) -> str:
    """As TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(spelled(each) for each in value)}]"
    return str(value)


def allowed(key: Key) -> str:
    """What the reader says is allowed when it refuses a value."""
    text = objection(key, Nothing()).replace("a list of ", "a list of: ")
    if text.startswith("a number with"):
        smallest = objection(key, "0B" if "KiB" in text else "0s")
        text = (
            f"{'a size' if 'KiB' in text else 'a duration'}{', ' + smallest if smallest.startswith('at least') else ''}"
        )
    return plain(text)


def plain(text: str) -> str:
    """Escapes characters that mean something in Markdown."""
    return re.sub(r"[*|<]", r"\\\g<0>", text)


def objection(key: Key, value: object) -> str:
    try:
        key.reader.read(value)
    except BadValue as error:
        return error.reasons[0][1]
    return ""


def meaning(key: Key) -> str:
    return plain(key.meaning) + (" *restart*" if key.restart else "")


EXAMPLE = """\
# Every setting of holdfast, at its default. A file that holds only what you change is enough; none at all is fine.
# Written by `make docs` from src/holdfast/config/keys.py.
#
# Read from --config FILE or HOLDFAST_CONFIG. Each key can also be given as an environment variable, such as
# HOLDFAST_DELIVERY__PER_HOST=8; flags win over the environment, the environment over this file.
# Durations: "250ms" "30s" "10m" "48h" "30d". Sizes: "512B" "64KiB" "1MiB" "4GiB". "" means "not set".
# `holdfast check FILE` reports everything that is wrong with a file.
"""
EXAMPLE_ROUTE = """\
# Named targets: POST /to/billing/... goes to the url with the rest of the path appended. There are none by default.
#
# [routes.billing]
"""
ROUTE_VALUES = {
    "url": '"https://hooks.example.com/in"',
    "headers": '{ "x-team" = "billing" }',
    "sign": '{ scheme = "standard-webhooks", secret_file = "/run/secrets/billing" }',
}
WIDTH = 120


def example() -> str:
    """config/holdfast.toml."""
    sections = [
        f"[{name}]\n" + "".join(entry(each, spelled(key.default), key, 28) for each, key in section.keys.items())
        for name, section in SECTIONS.items()
    ]
    values = {name: ROUTE_VALUES.get(name) or spelled(key.default) for name, key in ROUTE.items()}
    route = "".join(f"# {entry(name, values[name], key, 41)}" for name, key in ROUTE.items())
    return "\n".join([EXAMPLE, *sections, EXAMPLE_ROUTE + route])


def entry(name: str, value: str, key: Key, column: int) -> str:
    """One key as TOML, with its meaning as a comment beside it."""
    first = f"{name} = {value}".ljust(column - 1) + " "
    lines = wrap(key.meaning, max(WIDTH - len(first) - 2, 50), break_on_hyphens=False)
    return "".join(f"{' ' * len(first) if number else first}# {line}\n" for number, line in enumerate(lines))
