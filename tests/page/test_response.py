"""The page's response: a small self-contained file, and headers that enforce it."""

import base64
import hashlib
import re
from pathlib import Path

import pytest

from holdfast.operate.status_listener import PAGE
from tests.support.harness import running

TEXT = PAGE.body.decode()
HEADERS = {name.decode(): value.decode() for name, value in PAGE.headers}
LARGEST = 60_000


def policy() -> dict[str, str]:
    return dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))


@pytest.mark.parametrize("tag", ["style", "script"])
def test_the_policy_names_the_only_block_by_its_hash(tag: str) -> None:
    (block,) = re.findall(f"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)
    assert TEXT.count(f"<{tag}") == 1
    digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
    assert policy()[f"{tag}-src"] == f"'sha256-{digest}'"


def test_the_policy_allows_nothing_else() -> None:
    rules = policy()
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_page_contains_no_foreign_address() -> None:
    """The only address in it is the name of the SVG namespace, which is never fetched."""
    assert set(re.findall(r"https?://[\w./]+", TEXT)) == {"http://www.w3.org/2000/svg"}


def test_the_page_never_turns_text_into_markup() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", " onclick="):
        assert way not in TEXT


def test_the_page_is_small() -> None:
    assert len(PAGE.body) < LARGEST


def test_the_gateway_serves_the_page(tmp_path: Path) -> None:
    with running(tmp_path / "store") as gateway:
        answer = gateway.get("/")
    assert answer.status_code == 200
    assert answer.content == PAGE.body
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
