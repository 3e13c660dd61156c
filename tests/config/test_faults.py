"""No fault repeats a value that may be a secret, under any key, in any form and from any layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import ConfigError, build, keys
from holdfast.config.faults import unreadable
from holdfast.config.keys import SECTIONS
from holdfast.process.credentials import read_credentials

CANARY = "c4n4ry"
NUMBER = 867_530_986_753
TEXTS = [
    CANARY,
    f"whsec_{CANARY}",
    f"whsec_{CANARY}+/==",
    f"{CANARY}/{CANARY}",
    f"/{CANARY}/{CANARY}",
    f"{CANARY * 60}",
    f"{CANARY}\n",
    f"{CANARY}\0",
    f"{CANARY}:{CANARY}",
    f"{CANARY}:70000",
    f"5{CANARY}",
    f"5 {CANARY}",
    f"10.0.0.0/{CANARY}",
    f"*.{CANARY}..example",
    f"user:{CANARY}@host",
    f"https://user:{CANARY}@host.example/{CANARY}",
    f"https://host.example:{CANARY}/",
    f"ftp://host.example/{CANARY}",
    f"http://{CANARY}:0",
    f"http://host.example:3128/{CANARY}",
    f"postgresql://user:{CANARY}@host/a b",
    f"postgresql://user:p@{CANARY}@host/db",
    f"postgresql://user:{CANARY}%@host/db",
    f"postgresql://user:p@host:{CANARY}/db",
    f"host=h password={CANARY}",
]
NESTED: list[Any] = [
    *([text] for text in TEXTS),
    *({key: text} for key in ("x", "scheme", "secret_file", "secret_env", "secret") for text in TEXTS),
    *({"scheme": text, "secret_env": "X"} for text in TEXTS),
    [[CANARY]],
    [{"x": CANARY}],
    {"x": [CANARY]},
    {"x": {"x": CANARY}},
    {"secret_file": {"x": CANARY}},
    {"secret_file": CANARY, "secret_env": CANARY},
    {CANARY: ""},
    {f"authorization: bearer {CANARY}": "x"},
    {f"x-{CANARY} ": "x"},
]
ROUTE = {"url": "https://host.example"}
KEYS = [(section, name, key) for section in SECTIONS for name, key in SECTIONS[section].keys.items()]
KEYS += [("routes", name, key) for name, key in keys.ROUTE.items()]
PLACES = [(section, name) for section, name, _ in KEYS]
NUMERIC = {(section, name) for section, name, key in KEYS if isinstance(key.default, int | float | list)}


def said(mapping: Mapping[str, Any], environ: Mapping[str, str], cwd: Path) -> str:
    """All faults, as text and as `holdfast check --json` prints them."""
    try:
        read_credentials(build(mapping, environ=environ, cwd=cwd), {})
    except ConfigError as error:
        parts = [(fault.key, fault.problem, fault.allowed) for fault in error.faults]
        return f"{error}\n{json.dumps(parts)}"
    return ""


def in_a_file(section: str, name: str, value: object) -> dict[str, Any]:
    if section == "routes":
        return {"routes": {"a": {**ROUTE, name: value}}}
    return {section: {name: value}}


@pytest.mark.parametrize(("section", "name"), PLACES)
def test_a_secret_under_any_key_is_not_repeated(section: str, name: str, tmp_path: Path) -> None:
    heard = 0
    for value in [*TEXTS, *NESTED]:
        told = said(in_a_file(section, name, value), {}, tmp_path)
        assert CANARY not in told, (value, told)
        heard += bool(told)
    assert heard > 50


@pytest.mark.parametrize(("section", "name"), PLACES)
def test_a_secret_in_the_environment_is_not_repeated(section: str, name: str, tmp_path: Path) -> None:
    where = f"{section}__a__{name}" if section == "routes" else f"{section}__{name}"
    routes = {"routes": {"a": ROUTE}} if section == "routes" else {}
    for text in (*TEXTS, f'["{CANARY}", "{CANARY} "]', f'{{ x = "{CANARY} " }}', f"[{CANARY}", f'"{CANARY}'):
        told = said(routes, {f"HOLDFAST_{where.upper()}": text}, tmp_path)
        assert CANARY not in told, (text, told)


def test_a_secret_instead_of_a_section_or_a_route_is_not_repeated(tmp_path: Path) -> None:
    for value in (*TEXTS, [CANARY]):
        for mapping in ({section: value} for section in (*SECTIONS, "routes")):
            told = said(mapping, {}, tmp_path)
            assert told and CANARY not in told, (mapping, told)
        assert CANARY not in said({"routes": {"a": value}}, {}, tmp_path)


@pytest.mark.parametrize(("section", "name"), sorted(set(PLACES) - NUMERIC))
def test_a_number_where_text_belongs_is_not_repeated(section: str, name: str, tmp_path: Path) -> None:
    """A PIN is a number too. Instead of a duration, a size or a choice it is shown: no secret belongs there."""
    for value in (NUMBER, float(NUMBER), [NUMBER], {"x": NUMBER}, {"secret_file": NUMBER}, {"secret_env": NUMBER}):
        told = said(in_a_file(section, name, value), {}, tmp_path)
        is_shown = "without a unit" in told or "is not one of the choices" in told
        assert str(NUMBER) not in told or is_shown, told


def test_understood_values_are_shown(tmp_path: Path) -> None:
    told = said({"store": {"max_size": "1MiB"}, "retry": {"max_retries": 99, "base": "200000d"}}, {}, tmp_path)
    assert all(value in told for value in ('"1MiB" is too small', "99 is out of range", '"200000d" is longer'))


def test_items_of_a_list_are_named_by_their_place(tmp_path: Path) -> None:
    told = said({"ingest": {"hosts": ["a.example", "a b", "b.example", 7]}}, {}, tmp_path)
    assert "ingest.hosts: item 2: this text is not a host" in told
    assert "ingest.hosts: item 4: is a number, not text in quotes" in told


def test_a_path_is_shown_as_far_as_it_exists(tmp_path: Path) -> None:
    def told(path: Path) -> str:
        with pytest.raises(OSError) as raised:
            path.read_text()
        return unreadable(path, raised.value)

    (tmp_path / "link").symlink_to("nowhere")
    assert told(tmp_path) == f"{tmp_path} can't be read: Is a directory"
    assert told(tmp_path / "link").startswith(f"{tmp_path}/link can't be read: No such file")
    for lost in (tmp_path / CANARY, tmp_path / CANARY / CANARY, tmp_path / (CANARY * 60)):
        assert told(lost).startswith("the file can't be read: ")
        assert told(lost).endswith(f"; of its path there is {tmp_path}")
