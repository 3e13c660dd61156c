"""config.md: every key of `config.table`, what its reader allows, and the comment beside it in config/holdfast.toml."""

import re
from pathlib import Path

from holdfast.config.faults import BadValue
from holdfast.config.layers import PREFIX
from holdfast.config.table import KEYS, REQUIRED, ROUTE_KEYS, SECTIONS, Key
from holdfast.process.reload import NEEDS_RESTART

EXAMPLE = Path(__file__).parents[2] / "config" / "holdfast.toml"

INTRODUCTION = f"""\
# Config reference

Written by `make docs` from the code and from the comments of [config/holdfast.toml](../config/holdfast.toml), which
has the same keys to copy from.

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
    meanings = comments(EXAMPLE.read_text())
    sections = [
        f"## [{section}]\n\n{table([key for key in KEYS if key.section == section], meanings)}"
        for section in SECTIONS
        if any(key.section == section for key in KEYS)
    ]
    routes = f"{ROUTES}\n{table(list(ROUTE_KEYS), meanings)}"
    return "\n".join([INTRODUCTION, *sections, routes])


def table(keys: list[Key], meanings: dict[str, str]) -> str:
    rows = [f"| {key.name} | {default(key)} | {allowed(key)} | {meaning(key, meanings)} |\n" for key in keys]
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
    """What the reader itself says when it is given nothing that it could take."""
    text = objection(key, Nothing()).replace("a list of ", "a list of: ")
    if text.startswith("a number with"):
        smallest = objection(key, "0B" if "KiB" in text else "0s")
        text = (
            f"{'a size' if 'KiB' in text else 'a duration'}{', ' + smallest if smallest.startswith('at least') else ''}"
        )
    return plain(text)


def plain(text: str) -> str:
    """Nothing in it is Markdown."""
    return re.sub(r"[*|<]", r"\\\g<0>", text)


def objection(key: Key, value: object) -> str:
    try:
        key.reader.read(value)
    except BadValue as error:
        return error.reasons[0][1]
    return ""


def meaning(key: Key, meanings: dict[str, str]) -> str:
    restart = " *restart*" if f"{key.section}.{key.name}" in NEEDS_RESTART else ""
    return plain(meanings[f"{key.section}.{key.name}"]) + restart


def comments(text: str) -> dict[str, str]:
    """The comment of each key, by its dotted name; the route's are those of the example in comments."""
    found: dict[str, str] = {}
    section = name = ""
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        if header := re.match(r"\[(\w+)", bare):
            section = header[1]
        elif entry := re.match(r"(\w+) = .*?(?:\s#\s(.*)|$)", bare):
            name = f"{section}.{entry[1]}"
            found[name] = entry[2] or ""
        elif more := re.match(r"\s+# (.*)", line):
            found[name] += f" {more[1]}"
    return found
