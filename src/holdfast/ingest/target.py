"""A URL in a request that is no target is refused: `core.target` has the grammar."""

from holdfast.config.hosts import ascii_name
from holdfast.core import target
from holdfast.core.target import BadTarget, Target, lane_of, make_target, matches_host
from holdfast.ingest.refusals import BAD_TARGET, Refused

__all__ = ["Target", "lane_of", "make_target", "matches_host", "parse_target"]


def parse_target(url: bytes | str) -> Target:
    try:
        return target.parse_target(url, ascii_name)
    except BadTarget as error:
        raise Refused(BAD_TARGET, f"The target {error}.") from None
