"""Numbers and times as the docs write them."""

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


def number(value: int) -> str:
    return f"{value:,}"


def span(milliseconds: int) -> str:
    """At most two parts, to the nearest of the smaller: "48 h 13 min", "9 min 54 s", "84.8 s"."""
    if milliseconds < 2 * MINUTE:
        return f"{milliseconds / SECOND:g} s"
    large, small, names = (MINUTE, SECOND, "min s") if milliseconds < HOUR else (HOUR, MINUTE, "h min")
    whole, rest = divmod(round(milliseconds / small), large // small)
    parts = zip((whole, rest), names.split(), strict=True)
    return " ".join(f"{count} {name}" for count, name in parts if count)
