"""Configs of dotted keys, and the faults of bad ones."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import Config, ConfigError, ConfigFault, build

WITH_TOKEN: dict[str, object] = {"ingest.token_file": "/run/token"}


def nest(values: dict[str, object]) -> dict[str, dict[str, object]]:
    mapping: dict[str, dict[str, object]] = {}
    for dotted, value in values.items():
        section, name = dotted.split(".")
        mapping.setdefault(section, {})[name] = value
    return mapping


def make(values: dict[str, object]) -> Config:
    return build(nest(values))


def faults_of(mapping: dict[str, Any]) -> tuple[ConfigFault, ...]:
    with pytest.raises(ConfigError) as caught:
        build(mapping)
    return caught.value.faults


def route(**keys: object) -> dict[str, Any]:
    return {"routes": {"b": {"url": "https://b.example/in", **keys}}}
