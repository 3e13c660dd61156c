"""When a store takes no new message, and whom that concerns."""

from holdfast.core.store_rules import MESSAGE_COST, cost_of, refusal
from tests.core.build import entry

MESSAGE = entry("h:443").message._replace(body=b"x" * 100)


def test_a_message_costs_its_body_and_a_fixed_part() -> None:
    assert cost_of(MESSAGE) == MESSAGE_COST + 100


def test_a_full_store_refuses_everyone() -> None:
    full = refusal(MESSAGE, is_full=True, held=0, share=1e9)
    assert full is not None
    assert full.host is None


def test_a_host_may_fill_its_share_and_no_more() -> None:
    held, share = 10_000, 10_000 + cost_of(MESSAGE)
    assert refusal(MESSAGE, is_full=False, held=held, share=share) is None
    over = refusal(MESSAGE, is_full=False, held=held + 1, share=share)
    assert over is not None
    assert over.host == "h:443"
