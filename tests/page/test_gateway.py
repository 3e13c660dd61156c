"""The page in a real browser, on a real gateway with one healthy, one disabled and one frozen host."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.page.browser import Browser
from tests.page.conftest import Picture
from tests.support.harness import Gateway, Receiver, running, start, until

SETTINGS = {"retry__base": "1h", "circuit__min_attempts": 3, "circuit__freeze_at": 3, "circuit__probe_every": "10m"}
EDGE = "return document.querySelector('#accepted .edge').getAttribute('d')"


@dataclass
class World:
    gateway: Gateway
    healthy: Receiver
    disabled: Receiver
    frozen: Receiver
    failed: str

    @property
    def page(self) -> str:
        return f"http://{self.gateway.status}/"


def key(receiver: Receiver) -> str:
    return f"127.0.0.1:{receiver.port}"


def attempt(gateway: Gateway, receiver: Receiver, status: int) -> str:
    """Send a webhook that is answered with this status. Returns its id when the outcome is recorded."""
    receiver.answer = lambda request: status
    id = str(gateway.post(f"{receiver.url}/secret").json()["id"])
    until(lambda: gateway.message(id)["attempts"])
    return id


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    receivers = [Receiver() for _ in range(3)]
    healthy, disabled, frozen = receivers
    with running(tmp_path / "store", **SETTINGS) as gateway:
        attempt(gateway, healthy, 200)
        # Three of four attempts fail, never three in a row: the circuit is disabled.
        failed, *_ = [attempt(gateway, disabled, status) for status in (500, 500, 200, 500)]
        for _ in range(3):
            attempt(gateway, frozen, 503)
        for receiver, state in ((disabled, "disabled"), (frozen, "frozen")):
            until(lambda r=receiver, s=state: gateway.get(f"/circuits/{key(r)}").json()["state"] == s)
        yield World(gateway, healthy, disabled, frozen, failed)
    for receiver in receivers:
        receiver.close()


def total(browser: Browser, name: str) -> int:
    return int(browser.text(f"[data-total={name}]").replace(",", "") or 0)


def test_the_page_shows_troubled_hosts(world: World, browser: Browser, picture: Picture) -> None:
    browser.open(world.page)
    browser.until_text("#headline", "Healthy, with 2 hosts in trouble")
    assert "1 host frozen" in browser.text("#reason")
    rows = browser.texts("#circuits tbody")
    assert len(rows) == 2
    assert key(world.frozen) in rows[0]
    assert "far too many failures in a row" in rows[0]
    assert f"holdfast unfreeze {key(world.frozen)}" in rows[0]
    assert key(world.disabled) in rows[1]
    assert "too many of its attempts failed" in rows[1]
    browser.until_text("#circuits", "in 9 min 5")
    assert key(world.healthy) not in browser.text("#circuits")
    # Both receivers' failures, the latest first, with no path of a target.
    assert [key(world.frozen) in row for row in browser.texts("#failures tbody")] == [True] * 3 + [False] * 3
    assert "secret" not in browser.text("body")
    for name, look in (("light", {}), ("dark", {"dark": True}), ("narrow", {"width": 360})):
        browser.look(**look)
        picture(f"gateway-{name}")
    assert browser.console() == []


def test_the_page_updates_its_numbers(world: World, browser: Browser) -> None:
    browser.open(world.page)
    browser.until_text("#headline", "Healthy")
    accepted, delivered = total(browser, "accepted"), total(browser, "delivered")
    for _ in range(5):
        attempt(world.gateway, world.healthy, 200)
    until(lambda: total(browser, "accepted") == accepted + 5 and total(browser, "delivered") == delivered + 5)
    # The charts leave out the current five seconds.
    until(lambda: float(browser.text("#accepted .rate")) > 0 and float(browser.text("#delivered .rate")) > 0)
    assert set(re.findall(r"V[\d.]+", browser.run(EDGE))) > {"V100.00"}
    held = world.gateway.post(world.disabled.url).json()["id"]
    waiting = int(browser.text("[data-fact=Waiting]"))
    until(lambda: world.gateway.message(held)["state"] == "held")
    until(lambda: int(browser.text("[data-fact=Waiting]")) == waiting + 1)
    assert browser.console() == []


def test_a_message_is_looked_up_and_drawn(world: World, browser: Browser, picture: Picture) -> None:
    browser.open(world.page)
    browser.until_text("#headline", "Healthy")
    browser.type("#id", f" {world.failed}\n")
    text = browser.until_text("#message", "its host is disabled, the next probe is in 9 min")
    assert "held" in text
    assert "the host's" in text
    assert "500" in browser.text("#message tbody")
    assert browser.count("#line .bead[data-tone=bad]") == 1
    assert browser.count("#line .bead[data-tone=coming]") == 1
    assert browser.run("return document.activeElement.id") == "message-title"
    assert browser.run("return location.hash") == f"#{world.failed}"
    retrying = attempt(world.gateway, world.healthy, 502)
    browser.run("location.hash = arguments[0]", retrying)
    browser.until_text("#message", "Retry 1 of 11 in 59 min")
    assert browser.count("#line .bead[data-tone=coming]") == 11
    picture("gateway-message")
    world.healthy.answer = lambda request: 200
    browser.click("#message [data-key=close]")
    assert browser.text("#message") == ""
    assert browser.console() == []


def test_the_page_reports_a_stopped_gateway_and_recovers(tmp_path: Path, browser: Browser, picture: Picture) -> None:
    gateway = start(tmp_path / "store")
    browser.open(f"http://{gateway.status}/")
    browser.until_text("#headline", "Healthy")
    gateway.stop()
    gateway.close()
    browser.until_text("#headline", "The gateway does not answer")
    browser.until_text("#reason", "The data below is from")
    browser.until_text("#pulse", "next try in")
    picture("gone")
    with running(tmp_path / "store", listen__status=gateway.status):
        browser.until_text("#headline", "Healthy")
        browser.until_text("#pulse", "updated")
