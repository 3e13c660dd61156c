"""What the demo shows is also checked: a promise of holdfast's that does not hold ends it."""


class PromiseBroken(Exception):
    """Says what was expected, and what was seen instead."""


def promise(kept: bool, expected: str, seen: object) -> None:
    if not kept:
        raise PromiseBroken(f"expected {expected}; saw {seen}")
