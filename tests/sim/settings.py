"""Random configs: the defaults, or numbers so small that a short world meets every rule."""

from random import Random
from typing import Any

HOSTS = ("a.test:80", "b.test:80", "c.test:80", "d.test:80", "urls.test:80")
ROUTES = {
    "quick": {"url": "http://a.test/in", "timeout": "800ms"},
    "paced": {"url": "http://b.test/in", "rate": 2},
}


def sections(chance: Random, *, small: bool) -> dict[str, dict[str, Any]]:
    """`circuit.url_hosts` and the routes are always the same: what a message belongs to never changes."""
    pick = chance.choice
    fixed = {"circuit": {"url_hosts": ["urls.test"]}, "routes": ROUTES}
    if not small:
        return fixed
    per_host = pick((1, 2, 4, 16))
    disable_after = pick((3, 10, 10, 2_000, 0))
    return fixed | {
        "retry": {
            "base": pick(("200ms", "300ms", "2s")),
            "max_retries": pick((11, 11, 4, 2)),
            "expire_after": pick(("5m", "10m", "20m", "2h")),
            "jitter": pick((0.0, 0.0, 0.3)),
            "retry_after_limit": pick(("20s", "24h")),
        },
        "circuit": {
            "url_hosts": ["urls.test"],
            "window": pick(("10m", "10m", "1h", "1m")),
            "min_attempts": pick((0, 4, 8, 100)),
            "failure_rate": pick((0.7, 0.7, 0.4, 0.0)),
            "disable_after": disable_after,
            "freeze_after": pick((12, 12, 5, 0)),
            "freeze_silence": pick(("5m", "20m", "72h")),
            "freeze_at": pick((disable_after + 1, 30, 60, 50_000, 0)),
            "probe_every": pick(("30s", "60s", "5m")),
            "forget_after": pick(("7d", "7d", "30m")),
        },
        "delivery": {
            "timeout": pick(("2s", "5s", "30s")),
            "per_host": per_host,
            "first_attempts": max(per_host, pick((4, 12, 256))),
            "retries": pick((4, 8, 64)),
            "rate_per_host": pick((0, 0, 0, 0, 1, 20)),
        },
        "retention": {"delivered": pick(("30d", "24h", "10m")), "dead": pick(("30d", "30d", "40m"))},
        "ingest": {"idempotency": pick(("24h", "10m"))},
        "store": {"host_share": pick((0.5, 0.5, 0.2))},
    }
