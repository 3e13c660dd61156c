"""The page in a real browser, with scripted answers of the gateway."""

from itertools import pairwise

import pytest

from tests.cli.scripted import Answer, Script, status
from tests.page import worlds
from tests.page.browser import Browser
from tests.page.conftest import Picture
from tests.support.harness import until
from tests.support.repetitions import cases

LOOKS = {"light": {}, "dark": {"dark": True}, "narrow": {"width": 360}}

# The lowest contrast of any visible text with its background, and that text.
CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const weights = [.2126, .7152, .0722];
const light = (colour) => weights.reduce((sum, weight, i) => sum + weight * linear(channels(colour)[i]), 0);
const behind = (node) => {
  const colour = getComputedStyle(node).backgroundColor, parts = channels(colour);
  return (parts.length === 4 && parts[3] < 1 && node.parentElement) ? behind(node.parentElement) : colour;
};
let worst = [21, ""];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  if (!own || !node.checkVisibility() || ["SCRIPT", "NOSCRIPT"].includes(node.tagName) || node.closest("svg")) continue;
  const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < worst[0]) worst = [contrast, node.textContent];
}
return worst;
"""

RECORD_TIMERS = """
window.timers = [];
const real = window.setTimeout;
window.setTimeout = (call, pause) => { window.timers.push(pause); return real(call, pause); };
"""


def visit(browser: Browser, script: Script, fragment: str = "", **world: object) -> None:
    worlds.play(script, **world)  # type: ignore[arg-type]
    browser.open(f"http://{script.where}/{fragment}")
    until(lambda: browser.text("#headline") not in ("", "Connecting to the gateway"))


@pytest.mark.parametrize("look", cases(["light"], ["dark", "narrow"]))
def test_a_healthy_gateway_shows_no_trouble(browser: Browser, script: Script, picture: Picture, look: str) -> None:
    browser.look(**LOOKS[look])
    visit(browser, script, **worlds.calm())
    assert browser.text("#headline") == "Healthy"
    assert browser.text("#circuits") == "None. All 14 recent hosts are enabled."
    assert browser.text("#failures") == "None since the gateway started."
    assert browser.count("table") == 0
    assert browser.run("return document.title") == "holdfast"
    picture(f"calm-{look}")
    assert browser.console() == []


@pytest.mark.parametrize("look", LOOKS)
def test_trouble_is_readable_in_every_layout(browser: Browser, script: Script, picture: Picture, look: str) -> None:
    browser.look(**LOOKS[look])
    visit(browser, script, f"#msg_{1:032x}", **worlds.trouble())
    browser.until_text("#message", "Retry 6 of 11")
    assert browser.count("#circuits tbody") == 3
    assert browser.count("#failures tbody") == 5
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    contrast, text = browser.run(CONTRAST)
    assert contrast >= 4.5, text
    picture(f"trouble-{look}")
    assert browser.console() == []


def test_a_gateway_that_just_started_waits_for_its_first_webhook(browser: Browser, script: Script) -> None:
    visit(browser, script, **worlds.fresh())
    assert browser.text("#reason") == "Waiting for the first webhook."
    assert browser.text("#accepted .rate") == "0"


@pytest.mark.parametrize(
    ("changes", "headline", "reason"),
    cases(
        [
            ({"ready": {"ready": True, "draining": False, "degraded": ["store_full"]}}, "Store full", "507"),
            ({"health": {"status": "failing", "checks": {"store": "fsync failed"}}}, "Failing", "store: fsync failed"),
        ],
        [
            ({"ready": {"ready": False, "draining": True, "degraded": []}}, "Draining", "finishes what is due"),
            ({"ready": {"ready": False, "draining": False, "degraded": []}}, "Not ready", "starting"),
            (
                {"ready": {"ready": False, "draining": False, "degraded": ["store_away"]}},
                "Database unreachable",
                "by itself",
            ),
        ],
    ),
)
def test_the_page_says_why_the_gateway_is_not_healthy(
    browser: Browser, script: Script, changes: dict[str, object], headline: str, reason: str
) -> None:
    visit(browser, script, **worlds.calm(), **changes)
    assert browser.text("#headline") == headline
    assert reason in browser.text("#reason")
    assert headline in str(browser.run("return document.title"))


def test_while_the_database_is_unreachable_the_page_counts_spooled_webhooks(browser: Browser, script: Script) -> None:
    world = worlds.calm()
    world["status"]["store"] |= {"spool": 12, "spooling_since": worlds.ago(60)}
    visit(browser, script, **world, ready={"ready": True, "draining": False, "degraded": ["store_away"]})
    assert browser.text("#headline") == "Database unreachable"
    assert browser.text("#reason").startswith("12 webhooks kept on this machine's disk. ")


@pytest.mark.parametrize("look", cases(["narrow"], ["light", "dark"]))
def test_a_wrong_clock_is_shown(browser: Browser, script: Script, picture: Picture, look: str) -> None:
    browser.look(**LOOKS[look])
    world = worlds.calm()
    world["status"]["clock"] = {"offset": 259_199.4, "off": True}
    visit(browser, script, **world)
    assert browser.text("#headline") == "Healthy, with its clock off"
    assert browser.text("#clock") == (
        "Its clock is 2 d 23 h ahead of the wall clock, and so are the times shown here. Signatures use the wall clock."
    )
    contrast, text = browser.run(CONTRAST)
    assert contrast >= 4.5, text
    picture(f"clock-{look}")
    assert browser.console() == []


def test_a_wrong_clock_is_shown_with_other_trouble_until_it_is_right(browser: Browser, script: Script) -> None:
    world = worlds.trouble()
    world["status"]["clock"] = {"offset": -3.0, "off": True}
    visit(browser, script, **world)
    assert browser.text("#headline") == "Healthy, with 3 hosts in trouble"
    assert browser.text("#clock").startswith("Its clock is 3 s behind the wall clock,")
    world["status"]["clock"] = {"offset": -0.1, "off": False}
    worlds.play(script, **world)
    until(lambda: not browser.run("return document.getElementById('clock').checkVisibility()"))


def test_foreign_text_is_shown_as_text(browser: Browser, script: Script) -> None:
    """Trusted types and the policy would block markup; the console shows that nothing was blocked."""
    world = worlds.trouble()
    world["disabled"]["circuits"][0]["host"] = f"x'; rm -rf / #{worlds.HOSTILE}"
    world["disabled"]["circuits"][1]["host"] = "https://h.example/a'b$(id)&c"
    world["figures"]["failures"] = [worlds.failure(detail=worlds.HOSTILE, host=worlds.HOSTILE, message=worlds.HOSTILE)]
    visit(browser, script, f"#msg_{7:032x}", **world)
    browser.until_text("#message", "<b>bold</b>")
    assert browser.count("img, b b, #failures b") == 0
    assert "\\u202e" in browser.text("#failures")
    commands = browser.texts(".command code")
    assert "holdfast probe 'https://h.example/a'\\''b$(id)&c'" in commands
    assert not any("rm -rf" in command for command in commands)
    assert browser.console() == []


def test_an_unknown_id_is_requested_once(browser: Browser, script: Script) -> None:
    unknown = "msg_" + "0" * 32
    visit(browser, script, f"#{unknown}", **worlds.calm())
    browser.until_text("#message", "There is no message")
    rounds = script.paths().count("GET /status")
    until(lambda: script.paths().count("GET /status") > rounds)
    assert script.paths().count(f"GET /messages/{unknown}") == 1


def test_an_invalid_id_is_not_requested(browser: Browser, script: Script) -> None:
    visit(browser, script, "#msg_../../status", **worlds.calm())
    browser.type("#id", "../status\n")
    assert "32 hexadecimal digits" in str(browser.run("return document.querySelector('#id').validationMessage"))
    assert not any("/messages/" in path for path in script.paths())


@pytest.mark.parametrize(
    ("number", "words", "bad", "ok", "coming"),
    cases(
        [(1, "Retry 6 of 11 in", 5, 0, 6), (3, "Delivered by attempt 7", 5, 1, 0)],
        [
            (2, "its host is disabled", 7, 0, 1),
            (4, "Dead: its last retry failed", 12, 0, 0),
            (6, "An attempt is in flight", 0, 0, 12),
        ],
    ),
)
def test_every_life_of_a_message_is_drawn(
    browser: Browser, script: Script, number: int, words: str, bad: int, ok: int, coming: int
) -> None:
    visit(browser, script, f"#msg_{number:032x}", **worlds.trouble())
    browser.until_text("#message .next", words)
    for tone, count in (("bad", bad), ("ok", ok), ("coming", coming)):
        assert browser.count(f"#line .bead[data-tone={tone}]") == count, tone


def test_retries_are_evenly_spaced_on_the_line(browser: Browser, script: Script) -> None:
    visit(browser, script, f"#msg_{4:032x}", **worlds.trouble())
    browser.until_text("#message", "Dead")
    places = browser.run("return [...document.querySelectorAll('#line circle')].map(e => +e.getAttribute('cx'))")
    steps = [after - before for before, after in pairwise(places)]
    assert len(steps) == 11
    assert max(steps) - min(steps) < 1


@pytest.mark.parametrize("clipboard", ["there", "missing"])
def test_a_command_is_copied_with_and_without_the_clipboard(browser: Browser, script: Script, clipboard: str) -> None:
    visit(browser, script, **worlds.trouble())
    if clipboard == "missing":
        browser.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    browser.run("addEventListener('copy', () => { window.copied = String(getSelection()); })")
    browser.click(".command button")
    browser.until_text(".command button", "Copied")
    assert browser.text("#said") == "Copied"
    if clipboard == "missing":
        assert browser.run("return window.copied") == "holdfast unfreeze old.partner.example:443"


def test_an_unchanged_row_keeps_its_focus(browser: Browser, script: Script) -> None:
    world = worlds.trouble()
    visit(browser, script, **world)
    browser.run("document.querySelectorAll('#circuits .command button')[2].focus()")
    focused = browser.run("return document.activeElement.dataset.key")
    world["disabled"]["circuits"][0]["waiting"] = 894
    worlds.play(script, **world)
    browser.until_text("#circuits", "894")
    assert browser.run("return document.activeElement.dataset.key") == focused


def test_a_hidden_page_sends_no_requests(browser: Browser, script: Script) -> None:
    def hide(hidden: bool) -> None:
        browser.run(
            "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'));",
            hidden,
        )

    visit(browser, script, **worlds.calm())
    browser.run(RECORD_TIMERS)
    hide(True)
    worlds.play(script, **worlds.trouble())
    browser.run("document.querySelector('#again').click()")
    browser.until_text("#headline", "3 hosts in trouble")
    assert browser.run("return window.timers") == []
    hide(False)
    until(lambda: browser.run("return window.timers") == [2_000])


def test_the_page_polls_less_often_while_there_is_no_answer(browser: Browser, script: Script) -> None:
    visit(browser, script, **worlds.calm())
    browser.run(RECORD_TIMERS)
    script.answers = {name: [Answer(200, b"not a gateway")] for name in script.answers}
    for count in range(1, 7):
        browser.run("document.querySelector('#again').click()")
        until(lambda n=count: len(browser.run("return window.timers")) >= n)
    pauses = browser.run("return window.timers")
    assert pauses[:6] == [2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    assert browser.text("#headline") == "The gateway does not answer"
    worlds.play(script, status=status())
    browser.click("#again")
    browser.until_text("#headline", "Healthy")


def test_reduced_motion_is_respected(browser: Browser, script: Script) -> None:
    moving = "return getComputedStyle(document.querySelector('#sign')).animationName"
    visit(browser, script, **worlds.calm())
    until(lambda: browser.count(".beat") == 1)
    assert browser.run(moving) == "none"
    browser.look(motion=True)
    until(lambda: browser.run(moving) == "beat")
