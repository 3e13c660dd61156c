"""The file, the environment and the flags laid over one another, later ones winning, by dotted key.

Only names are judged here: a name that no row of the table knows is a fault that suggests the nearest one.
Values wait for the end, since a bad value that a higher layer replaces does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.config.faults import Fault, show
from holdfast.config.keys import ROUTE, SECTIONS, Key

PREFIX = "HOLDFAST_"
# Names the file; read by load().
FILE_VARIABLE = "HOLDFAST_CONFIG"

_KEYS = {name: section.keys for name, section in SECTIONS.items()} | {"routes": ROUTE}
_ROUTE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Setting:
    value: object
    origin: str = ""  # the environment variable, where it came from one


class Layers:
    """Collects settings from the weakest layer to the strongest, and the faults in their names."""

    def __init__(self) -> None:
        self.settings: dict[str, Setting] = {}
        self.routes: dict[str, None] = {}  # in order of appearance
        self.faults: list[Fault] = []

    def add_mapping(self, mapping: Mapping[str, object]) -> None:
        for section, table in mapping.items():
            if section not in _KEYS:
                self.faults.append(_unknown(section, "section", _nearest(section, _KEYS, 0.7)))
            elif not isinstance(table, dict):
                self.faults.append(Fault(section, f"{show(table)} is not a section", f"[{section}] with its keys"))
            elif section != "routes":
                self._add_table(section, section, table)
            else:
                self._add_routes(table)

    def _add_routes(self, routes: dict[str, object]) -> None:
        for name, table in routes.items():
            if not isinstance(table, dict):
                allowed = "[routes.NAME] with a url"
                self.faults.append(Fault(f"routes.{name}", f"{show(table)} is not a route", allowed))
            elif self._add_route(name, f"routes.{name}"):
                self._add_table("routes", f"routes.{name}", table)

    def _add_table(self, section: str, prefix: str, table: dict[str, object]) -> None:
        for name, value in table.items():
            if name in _KEYS[section]:
                self.settings[f"{prefix}.{name}"] = Setting(value)
            else:
                self.faults.append(_unknown(f"{prefix}.{name}", "key", _nearest_key(prefix, name)))

    def add_environ(self, environ: Mapping[str, str]) -> None:
        """Names without a double underscore are not ours: Kubernetes injects HOLDFAST_PORT and the like."""
        for variable, text in sorted(environ.items()):
            name = variable.removeprefix(PREFIX)
            if name == variable or "__" not in name:
                continue
            section, _, rest = name.lower().partition("__")
            dotted = f"{section}.{rest}"
            if section == "routes":
                route, _, key_name = rest.rpartition("__")
                dotted = f"routes.{route}.{key_name}"
            self._add_text(dotted, text, variable)

    def add_flags(self, flags: Mapping[str, str]) -> None:
        for dotted, text in flags.items():
            self._add_text(dotted, text)

    def _add_text(self, dotted: str, text: str, variable: str = "") -> None:
        section, _, name = dotted.partition(".")
        route, _, key_name = name.rpartition(".")
        key = _KEYS[section].get(key_name) if section in _KEYS else None
        if key is None or bool(route) != (section == "routes"):
            prefix = f"routes.{route or 'NAME'}" if section == "routes" else section
            nearest = _nearest_key(prefix, key_name)
            shown = _variable(nearest) if nearest and variable else nearest
            self.faults.append(_unknown(variable or dotted, "key", shown))
        elif not route or self._add_route(route, variable or dotted):
            self.settings[dotted] = Setting(key.reader.from_text(text), variable)

    def _add_route(self, name: str, shown: str) -> bool:
        if not _ROUTE_NAME.fullmatch(name):
            allowed = "small letters, digits, _ and -, beginning with a letter or digit"
            self.faults.append(Fault(shown, "is not a route name", allowed))
            return False
        self.routes[name] = None
        return True

    def effective(self, dotted: str, key: Key) -> Setting:
        return self.settings.get(dotted) or Setting(key.default)


def _unknown(name: str, what: str, nearest: str | None) -> Fault:
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    return Fault(name, f"there is no such {what}{hint}")


def _nearest(name: str, known: Iterable[str], cutoff: float) -> str | None:
    # A good config never pays for it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def _nearest_key(prefix: str, name: str) -> str | None:
    """A similar name in the same section, else the same name in another, else whatever looks alike."""
    known = [(section, other) for section in SECTIONS for other in _KEYS[section]]
    if prefix.startswith("routes."):
        known += [(prefix, other) for other in ROUTE]
    beside = _nearest(name, [other for section, other in known if section == prefix], 0.6)
    if beside:
        return f"{prefix}.{beside}"
    namesakes = [f"{section}.{other}" for section, other in known if other == name]
    everything = [f"{section}.{other}" for section, other in known]
    return _nearest(f"{prefix}.{name}", namesakes, 0.5) or _nearest(f"{prefix}.{name}", everything, 0.8)


def _variable(dotted: str) -> str:
    return PREFIX + dotted.upper().replace(".", "__")
