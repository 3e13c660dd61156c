"""`build` makes a Config of its arguments alone; `load` adds the file and the environment of this process.

Layers are laid over one another by dotted key: the file, the environment, the flags; later ones win. Names are judged
at once: an unknown name is a fault that suggests the nearest known one. Values are judged at the end, since a bad value
that a higher layer replaces does no harm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.config.config_files import read_config
from holdfast.config.faults import BadValue, ConfigError, ConfigFault, show
from holdfast.config.keys import REQUIRED, ROUTE, SECTIONS, Key
from holdfast.config.rules import ROUTE_RULES, RULES
from holdfast.config.tree import Config, RouteSettings, SignSettings
from holdfast.core.schedule import schedule_span

PREFIX = "HOLDFAST_"
# Names the file; `load` reads it.
FILE_VARIABLE = "HOLDFAST_CONFIG"

_NOTHING: Mapping[str, str] = {}
_KEYS = {name: section.keys for name, section in SECTIONS.items()} | {"routes": ROUTE}
_ROUTE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def load(
    path: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, str] = _NOTHING, *, again: bool = False
) -> Config:
    """Config of this process: flags over environment over file (`path`, else $HOLDFAST_CONFIG, else none). `again`
    while a gateway runs: then it waits for nothing.
    """
    file = config_file(path, environ)
    mapping = _read_file(file, again) if file is not None else {}
    return build(mapping, environ=environ, flags=flags, uid=os.geteuid(), cwd=Path.cwd())


def config_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file that `load` reads, if any."""
    name = path or environ.get(FILE_VARIABLE)
    return Path(name) if name else None


def build(
    mapping: Mapping[str, object],
    *,
    environ: Mapping[str, str] = _NOTHING,
    flags: Mapping[str, str] = _NOTHING,
    uid: int = 0,
    cwd: Path = Path("/"),
) -> Config:
    """Config of these values, or a ConfigError with every fault.

    Reads nothing but its arguments. Their defaults are those of a system service: no environment, root, in /.
    """
    layers = Layers()
    layers.add_mapping(mapping)
    layers.add_environ(environ)
    layers.add_flags(flags)
    sections = {name: layers.read(name, section.keys) for name, section in SECTIONS.items()}
    routes = {name: layers.read(f"routes.{name}", ROUTE) for name in layers.routes}
    faults = layers.faults + _resolve(sections, environ, uid, cwd)
    # Built even when a value is bad, with its default instead, so that rules between good keys are checked too.
    built: dict[str, Any] = {name: section.make(**sections[name]) for name, section in SECTIONS.items()}
    config = Config(**built, routes={name: _route(values, cwd) for name, values in routes.items()})
    bad = {fault.key for fault in faults}
    findings = [rule.check(config) for rule in RULES if bad.isdisjoint(rule.keys)]
    findings += [
        rule.check(f"routes.{name}", route)
        for name, route in config.routes.items()
        for rule in ROUTE_RULES
        if bad.isdisjoint(f"routes.{name}.{key}" for key in rule.keys)
    ]
    faults += [fault for fault in findings if fault is not None]
    if faults:
        raise ConfigError(faults)
    return config


def default_store_path(environ: Mapping[str, str], uid: int) -> Path | None:
    """The store's folder if none is configured; None if this environment has no place for it."""
    # systemd separates several folders with colons.
    state_directory = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if state_directory:
        return Path(state_directory)
    if uid == 0:
        return Path("/var/lib/holdfast")
    # By the XDG rules a relative path is ignored.
    state_home = Path(environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():
        return state_home / "holdfast"
    home = Path(environ.get("HOME", ""))
    return home / ".local/state/holdfast" if home.is_absolute() else None


@dataclass(frozen=True, slots=True)
class Setting:
    value: object
    origin: str = ""  # the environment variable, if it came from one


class Layers:
    """Collects settings from the weakest layer to the strongest, and the faults in their names; then reads values."""

    def __init__(self) -> None:
        self.settings: dict[str, Setting] = {}
        self.routes: dict[str, None] = {}  # in order of appearance
        self.faults: list[ConfigFault] = []

    def add_mapping(self, mapping: Mapping[str, object]) -> None:
        for section, table in mapping.items():
            if section not in _KEYS:
                self.faults.append(_unknown(section, "section", _nearest(section, _KEYS, 0.7)))
            elif not isinstance(table, dict):
                allowed = f"[{section}] with its keys"
                self.faults.append(ConfigFault(section, f"{show(table)} is not a section", allowed))
            elif section != "routes":
                self._add_table(section, section, table)
            else:
                self._add_routes(table)

    def _add_routes(self, routes: dict[str, object]) -> None:
        for name, table in routes.items():
            if not isinstance(table, dict):
                allowed = "[routes.NAME] with a url"
                self.faults.append(ConfigFault(f"routes.{name}", f"{show(table)} is not a route", allowed))
            elif self._add_route(name, f"routes.{name}"):
                self._add_table("routes", f"routes.{name}", table)

    def _add_table(self, section: str, prefix: str, table: dict[str, object]) -> None:
        for name, value in table.items():
            if name in _KEYS[section]:
                self.settings[f"{prefix}.{name}"] = Setting(value)
            else:
                self.faults.append(_unknown(f"{prefix}.{name}", "key", _nearest_key(prefix, name)))

    def add_environ(self, environ: Mapping[str, str]) -> None:
        """Ignores names without a double underscore: Kubernetes injects HOLDFAST_PORT and the like."""
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
            self.faults.append(ConfigFault(shown, "is not a route name", allowed))
            return False
        self.routes[name] = None
        return True

    def read(self, prefix: str, keys: dict[str, Key]) -> dict[str, Any]:
        """The values of one table. The value of a bad one is its default."""
        return {name: self._value(f"{prefix}.{name}", key) for name, key in keys.items()}

    def _value(self, dotted: str, key: Key) -> object:
        setting = self.settings.get(dotted) or Setting(key.default)
        if setting.value is REQUIRED:
            self.faults.append(ConfigFault(dotted, "is missing; every route needs one"))
            return None
        try:
            return key.reader.read(setting.value)
        except BadValue as error:
            origin = f" (from {setting.origin})" if setting.origin else ""
            self.faults += [ConfigFault(dotted, problem + origin, allowed) for problem, allowed in error.reasons]
            return None if key.default is REQUIRED else key.reader.read(key.default)


def _unknown(name: str, what: str, nearest: str | None) -> ConfigFault:
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    return ConfigFault(name, f"there is no such {what}{hint}")


def _nearest(name: str, known: Iterable[str], cutoff: float) -> str | None:
    # A good config does not need it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def _nearest_key(prefix: str, name: str) -> str | None:
    """A similar name in the same section, else the same name in another one, else any similar dotted name."""
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


def _resolve(sections: dict[str, dict[str, Any]], environ: Mapping[str, str], uid: int, cwd: Path) -> list[ConfigFault]:
    """Fill in the defaults that depend on other keys or on the environment, and make every path absolute."""
    store, listen, retry = sections["store"], sections["listen"], sections["retry"]
    faults = []
    if store["path"] is None:
        store["path"] = default_store_path(environ, uid)
    if store["path"] is None:
        problem = "has no default here: STATE_DIRECTORY, XDG_STATE_HOME and HOME are all unset"
        faults.append(ConfigFault("store.path", problem, "the path of a folder"))
        store["path"] = cwd
    if listen["control"] is None:
        listen["control"] = store["path"] / "control.sock"
    if retry["expire_after"] is None:
        retry["expire_after"] = schedule_span(retry["base"], retry["max_retries"])
    for values in sections.values():
        values.update(_absolute_paths(values, cwd))
    return faults


def _route(values: dict[str, Any], cwd: Path) -> RouteSettings:
    sign: SignSettings | None = values["sign"]
    if sign is not None and sign.secret_file is not None:
        sign = replace(sign, secret_file=_absolute(cwd, sign.secret_file))
    return RouteSettings(**values | _absolute_paths(values, cwd) | {"sign": sign})


def _absolute_paths(values: dict[str, Any], cwd: Path) -> dict[str, Path]:
    return {name: _absolute(cwd, path) for name, path in values.items() if isinstance(path, Path)}


def _absolute(cwd: Path, path: Path) -> Path:
    return Path(os.path.normpath(cwd / path))


def _read_file(path: Path, again: bool) -> dict[str, Any]:
    # Many processes have no config file, and need no parser.
    import tomllib

    try:
        text = read_config(path, again=again).decode("utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError([ConfigFault(str(path), f"can't be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([ConfigFault(f"{path}:{line}", "is not UTF-8", "TOML")]) from error
    except RecursionError as error:
        raise ConfigError([ConfigFault(str(path), "is nested too deep", "TOML")]) from error
    except ValueError as error:
        raise ConfigError([_malformed(path, text, str(error))]) from error


def _malformed(path: Path, text: str, message: str) -> ConfigFault:
    """tomllib gives the line only inside its message, and says "end of document" for the last one."""
    position = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if position is None:
        return ConfigFault(str(path), f"is not valid TOML: {message}")
    line = position[1] or len(text.splitlines()) or 1
    return ConfigFault(f"{path}:{line}", f"is not valid TOML: {message[: position.start()]}")
