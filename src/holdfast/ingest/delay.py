"""Holdfast-Delay: how long the first attempt is held back."""

from holdfast.config import format_duration, parse_duration
from holdfast.ingest.refusals import BAD_DELAY, Refused


def parse_delay(value: bytes, maximum: int) -> int:
    """Milliseconds of a delay such as `30s`."""
    try:
        delay = parse_duration(value.decode("latin-1"))
    except ValueError as error:
        raise Refused(
            BAD_DELAY, f'Holdfast-Delay: {error}; write a number with ms, s, m, h or d, such as "30s".'
        ) from None
    if delay > maximum:
        raise Refused(
            BAD_DELAY, f"Holdfast-Delay is longer than ingest.max_delay, which is {format_duration(maximum)}."
        )
    return delay
