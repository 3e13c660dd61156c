"""build() makes a Config of its arguments alone; load() adds the file and the process around it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.config.faults import BadValue, ConfigError, Fault
from holdfast.config.files import read_config
from holdfast.config.keys import REQUIRED, ROUTE, SECTIONS, Key
from holdfast.config.layers import FILE_VARIABLE, Layers
from holdfast.config.rules import ROUTE_RULES, RULES
from holdfast.config.tree import Config, Route, Sign
from holdfast.core.schedule import schedule_span

_NOTHING: Mapping[str, str] = {}


def load(
    path: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, str] = _NOTHING, *, again: bool = False
) -> Config:
    """Config of this process: flags over environment over file (`path`, else $HOLDFAST_CONFIG, else none). `again`
    while a gateway runs: nothing is waited for.
    """
    file = config_file(path, environ)
    mapping = _read_file(file, again) if file is not None else {}
    return build(mapping, environ=environ, flags=flags, uid=os.geteuid(), cwd=Path.cwd())


def config_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file that `load` reads; None if there is none."""
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

    Reads nothing but its arguments. Left out, the surroundings are a system service's: no environment,
    root, in /.
    """
    layers = Layers()
    layers.add_mapping(mapping)
    layers.add_environ(environ)
    layers.add_flags(flags)
    reading = _Reading(layers)
    sections = {name: reading.table(name, section.keys) for name, section in SECTIONS.items()}
    routes = {name: reading.table(f"routes.{name}", ROUTE) for name in layers.routes}

    faults = [*layers.faults, *reading.faults]
    faults += _resolve(sections, environ, uid, cwd)
    # Built even when something is bad, with defaults in its place, so that rules between good keys speak too.
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
    """Where the store lies if nobody says; None if this environment has no place for it."""
    # systemd lists several folders with colons between them.
    state_directory = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if state_directory:
        return Path(state_directory)
    if uid == 0:
        return Path("/var/lib/holdfast")
    # The XDG rules: a relative path there is to be ignored.
    state_home = Path(environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():
        return state_home / "holdfast"
    home = Path(environ.get("HOME", ""))
    return home / ".local/state/holdfast" if home.is_absolute() else None


class _Reading:
    """Reads the effective settings, collecting faults; a bad value gives way to its default."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self.faults: list[Fault] = []

    def table(self, prefix: str, keys: dict[str, Key]) -> dict[str, Any]:
        return {name: self._value(f"{prefix}.{name}", key) for name, key in keys.items()}

    def _value(self, dotted: str, key: Key) -> object:
        setting = self._layers.effective(dotted, key)
        if setting.value is REQUIRED:
            self.faults.append(Fault(dotted, "is missing; every route needs one"))
            return None
        try:
            return key.reader.read(setting.value)
        except BadValue as error:
            origin = f" (from {setting.origin})" if setting.origin else ""
            self.faults += [Fault(dotted, problem + origin, allowed) for problem, allowed in error.reasons]
            return None if key.default is REQUIRED else key.reader.read(key.default)


def _resolve(sections: dict[str, dict[str, Any]], environ: Mapping[str, str], uid: int, cwd: Path) -> list[Fault]:
    """Fill in the defaults that depend on other keys or on the surroundings, and make every path absolute."""
    store, listen, retry = sections["store"], sections["listen"], sections["retry"]
    faults = []
    if store["path"] is None:
        store["path"] = default_store_path(environ, uid)
    if store["path"] is None:
        problem = "has no default here: STATE_DIRECTORY, XDG_STATE_HOME and HOME are all unset"
        faults.append(Fault("store.path", problem, "the path of a folder"))
        store["path"] = cwd
    if listen["control"] is None:
        listen["control"] = store["path"] / "control.sock"
    if retry["expire_after"] is None:
        retry["expire_after"] = schedule_span(retry["base"], retry["max_retries"])
    for values in sections.values():
        values.update(_absolute_paths(values, cwd))
    return faults


def _route(values: dict[str, Any], cwd: Path) -> Route:
    sign: Sign | None = values["sign"]
    if sign is not None and sign.secret_file is not None:
        sign = replace(sign, secret_file=_absolute(cwd, sign.secret_file))
    return Route(**values | _absolute_paths(values, cwd) | {"sign": sign})


def _absolute_paths(values: dict[str, Any], cwd: Path) -> dict[str, Path]:
    return {name: _absolute(cwd, path) for name, path in values.items() if isinstance(path, Path)}


def _absolute(cwd: Path, path: Path) -> Path:
    return Path(os.path.normpath(cwd / path))


def _read_file(path: Path, again: bool) -> dict[str, Any]:
    # "No config at all" is common, and then this import is for nothing.
    import tomllib

    try:
        text = read_config(path, again=again).decode("utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError([Fault(str(path), f"can't be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([Fault(f"{path}:{line}", "is not UTF-8", "TOML")]) from error
    except RecursionError as error:
        raise ConfigError([Fault(str(path), "is nested too deep", "TOML")]) from error
    except ValueError as error:
        raise ConfigError([_malformed(path, text, str(error))]) from error


def _malformed(path: Path, text: str, message: str) -> Fault:
    """tomllib tells the line only inside its message, and says "end of document" for the last one."""
    position = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if position is None:
        return Fault(str(path), f"is not valid TOML: {message}")
    line = position[1] or len(text.splitlines()) or 1
    return Fault(f"{path}:{line}", f"is not valid TOML: {message[: position.start()]}")
