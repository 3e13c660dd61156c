"""What a new config may change while the gateway runs, and what only a restart can."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from holdfast.config import Config

NEEDS_RESTART = (
    "listen.ingest",
    "listen.status",
    "listen.probe",
    "listen.control",
    "listen.control_group",
    "store.path",
    "store.max_size",
    "store.url",
    "store.spool",
    "ingest.idempotency",
    "delivery.max_answer",
    "process.split",
    "process.watch_config",
)
"""What is open (sockets, files, connections, processes), what stored keys were laid out by, tasks that run or don't."""


def files_read(config: Config, file: Path | None) -> list[Path]:
    """What a reload reads: the config's file, and those it names that are not looked at with every attempt."""
    named = (file, config.ingest.token_file, config.delivery.proxy_credentials_file, config.delivery.ca_file)
    return [path for path in named if path is not None]


def merge(running: Config, wanted: Config) -> tuple[Config, list[str]]:
    """The wanted config with what needs a restart left as it runs, and the keys that were."""
    merged, left = wanted, []
    for key in NEEDS_RESTART:
        section, _, name = key.partition(".")
        old, new = getattr(getattr(running, section), name), getattr(getattr(wanted, section), name)
        if old != new:
            left.append(key)
            merged = _replaced(merged, section, name, old)
    return merged, left


def changed(running: Config, wanted: Config) -> list[str]:
    """The keys whose values differ, routes by their names."""
    found = []
    for section in fields(Config):
        old, new = getattr(running, section.name), getattr(wanted, section.name)
        if section.name == "routes":
            found += [f"routes.{name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
        else:
            names = [each.name for each in fields(old)]
            found += [f"{section.name}.{name}" for name in names if getattr(old, name) != getattr(new, name)]
    return found


def _replaced(config: Config, section: str, name: str, value: Any) -> Config:
    inner = replace(getattr(config, section), **{name: value})
    return replace(config, **{section: inner})
