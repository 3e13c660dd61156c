"""Configs by chance for worlds of a minute or two: a beat a second is what costs, so everything else is quick."""

from random import Random
from typing import Any

HOSTS = ("a.test:80", "b.test:80", "c.test:80", "urls.test:80")
UNIT = 0.2
"""Seconds by which receivers and delays go."""


def sections(chance: Random) -> dict[str, dict[str, Any]]:
    pick = chance.choice
    per_host = pick((1, 2, 3, 4, 16))
    return {
        "retry": {
            "base": pick(("200ms", "400ms", "1s")),
            "max_retries": pick((4, 4, 2, 0)),
            "expire_after": pick(("20s", "40s", "2m")),
            "retry_after_limit": "10s",
        },
        "circuit": {
            "url_hosts": ["urls.test"],
            "window": pick(("1m", "10m")),
            "min_attempts": pick((0, 4, 8)),
            "failure_rate": pick((0.7, 0.4)),
            "disable_after": pick((3, 6, 10, 0)),
            "freeze_after": pick((12, 5, 0)),
            "freeze_silence": pick(("10s", "30s")),
            "freeze_at": pick((20, 60, 0)),
            "probe_every": pick(("3s", "5s", "10s")),
            "forget_after": pick(("7d", "15s", "30s")),
        },
        "delivery": {
            "timeout": pick(("1s", "2s", "5s")),
            "per_host": per_host,
            "first_attempts": max(per_host, pick((4, 12, 256))),
            "retries": pick((4, 8, 64)),
        },
        "store": {"host_share": pick((0.5, 0.5, 0.2))},
    }
