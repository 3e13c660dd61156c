"""Scripted gateways for the page: documents with their own clock."""

import json
import math
from datetime import UTC, datetime, timedelta

from holdfast.operate.status_listener import PAGE
from tests.cli.scripted import Answer, Document, Script, attempt, circuit, documents, message, problem, status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BASE = 84.8
RULES = {"retry_base": BASE, "max_retries": 11, "probe_every": 600.0, "expire_after": 2047 * BASE}
NO_TOTALS = {"accepted": 0, "refused": {}, "delivered": 0, "failed_attempts": 0, "dead": {}, "trips": {}}
HOSTILE = "<img src=x onerror=alert(1)>\u202e</script><b>bold</b>"


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ahead(seconds: float) -> str:
    return ago(-seconds)


def due(retry: int) -> float:
    """Seconds from the first failure to this retry."""
    return float((2**retry - 1) * BASE)


def figures(**changes: object) -> Document:
    accepted = [round(max(0.0, 30 + 14 * math.sin(i / 17) + 6 * math.sin(i / 3.1)), 1) for i in range(180)]
    delivered = [round(value * (0.55 if 120 < i < 150 else 1.0), 1) for i, value in enumerate(accepted)]
    return {
        "now": ago(0), "width": 5.0, "accepted": accepted, "delivered": delivered, "failures": [], "rules": RULES,
        **changes,
    }  # fmt: skip


def failure(which: int = 1, **changes: object) -> Document:
    return {
        "time": ago(12), "event": "attempt_failed", "message": f"msg_{which:032x}", "host": "hooks.example.com:443",
        "target": "https://hooks.example.com/#c0ffee00", "route": None, "number": 1, "kind": "first", "duration": 0.184,
        "address": "203.0.113.7:443", "status": 503, "error": None, "detail": None, "fault": "host", "retry": 1,
        "next_attempt_at": ahead(72.8), **changes,
    }  # fmt: skip


def play(script: Script, **parts: Document) -> None:
    """Answer with these documents from now on; the others are healthy ones."""
    headers = tuple((name.decode(), value.decode()) for name, value in PAGE.headers)
    frozen, disabled = parts.get("frozen", {"circuits": []}), parts.get("disabled", {"circuits": []})
    paths: dict[str, Document] = {
        "/status": parts.get("status", status()),
        "/page.json": parts.get("figures", figures()),
        "/circuits?state=frozen&limit=50": {"next": None, **frozen},
        "/circuits?state=disabled&limit=50": {"next": None, **disabled},
        "/healthz": parts.get("health", {"status": "ok", "checks": {"store": "ok"}}),
        "/readyz": parts.get("ready", {"ready": True, "draining": False, "degraded": []}),
    }
    answers = {f"GET {path}": documents(document) for path, document in paths.items()}
    answers["GET /"] = [Answer(200, PAGE.body, headers)]
    for each in parts.get("messages", {}).values():
        answers[f"GET /messages/{each['id']}"] = [Answer(200, json.dumps(each).encode())]
    unknown = "msg_" + "0" * 32
    answers[f"GET /messages/{unknown}"] = problem(404, f"There is no message {unknown}: it never was.")
    script.answers = answers


def calm() -> dict[str, Document]:
    quiet = status(
        started_at=ago(4 * 86_400 + 3_600),
        store={"path": "/var/lib/holdfast", "used_bytes": 38 << 20, "max_bytes": 4 << 30, "waiting": 0, "dead": 0},
        queues={"first": 0, "retry": 0}, in_flight=3, oldest_waiting_at=None, next_due_at=None, earliest_expiry_at=None,
        circuits={"enabled": 14, "disabled": 0, "frozen": 0},
        totals=NO_TOTALS | {"accepted": 1_210_233, "delivered": 1_210_230},
    )  # fmt: skip
    return {"status": quiet}


def fresh() -> dict[str, Document]:
    """Just started, nothing sent yet."""
    world = calm()
    world["status"] |= {"started_at": ago(4), "in_flight": 0, "totals": NO_TOTALS, "circuits": {"enabled": 0}}
    world["figures"] = figures(accepted=[0.0] * 180, delivered=[0.0] * 180)
    return world


def trouble() -> dict[str, Document]:
    frozen = circuit(
        host="old.partner.example:443", state="frozen", since=ago(26 * 3_600), reason="silence",
        consecutive_failures=2_417, window={"attempts": 0, "failures": 0}, last_success_at=None, waiting=311, dead=5,
    )  # fmt: skip
    disabled = [
        circuit(
            host="hooks.example.com:443", state="disabled", since=ago(41 * 60), reason="failure_rate",
            consecutive_failures=188, window={"attempts": 240, "failures": 201}, last_success_at=ago(44 * 60),
            waiting=893, dead=12, next_probe_at=ahead(254),
        ),
        circuit(
            host="https://a-rather-long-name.integrations.customer.example:8443/webhooks/incoming/v2",
            state="disabled", since=ago(9), reason="consecutive_failures", consecutive_failures=2_000,
            window={"attempts": 31, "failures": 31}, next_probe_at=ahead(591),
        ),
    ]  # fmt: skip
    failures = [
        failure(1),
        failure(2, time=ago(15), status=None, error="timeout", detail="no answer within 30 s", duration=30.0, number=4,
                kind="retry", retry=4, next_attempt_at=ahead(600)),
        failure(3, time=ago(33), host="old.partner.example:443", status=None, error="dns", number=12, kind="retry",
                detail="Name or service not known", address=None, duration=0.02, next_attempt_at=None),
        failure(4, time=ago(61), status=None, error="egress_denied", fault="here", address=None, duration=0.001,
                detail="10.0.0.7 is a private address", host="internal.example:443"),
        failure(5, time=ago(190), kind="probe", number=3, status=500, next_attempt_at=None),
    ]  # fmt: skip
    bad = status(
        started_at=ago(4 * 86_400 + 3_600), oldest_waiting_at=ago(30 * 3_600), next_due_at=ahead(12),
        earliest_expiry_at=ahead(17.5 * 3_600), circuits={"enabled": 14, "disabled": 2, "frozen": 1},
    )  # fmt: skip
    return {
        "status": bad,
        "figures": figures(failures=failures),
        "frozen": {"circuits": [frozen]},
        "disabled": {"circuits": disabled},
        "messages": {str(each["id"]): each for each in messages()},
    }


def messages() -> list[Document]:
    begun = due(5) + 500
    tried = [
        attempt(number=1, at=ago(begun), duration=0.2, status=503, error=None, detail=None, answer="<h1>No</h1>"),
        attempt(number=2, at=ago(begun - due(1)), kind="retry"),
        attempt(number=3, at=ago(begun - due(2) - 30), kind="retry", error="egress_denied", fault="here", duration=0.01,
                address=None, detail="10.0.0.7 is a private address"),
        attempt(number=4, at=ago(begun - due(3) - 30), kind="retry", error="connect", detail="refused", duration=0.3),
        attempt(number=5, at=ago(begun - due(4) - 31), kind="retry", error=None, status=502, detail=None, duration=1.4),
        attempt(number=6, at=ago(begun - due(5) - 33), kind="retry", error=None, status=502, detail=None, duration=1.4),
    ]  # fmt: skip
    probes = [
        attempt(number=7, at=ago(400), kind="probe", error=None, status=500, detail=None, duration=0.2),
        attempt(number=8, at=ago(100), kind="probe", error=None, status=500, detail=None, duration=0.2),
    ]
    delivered = attempt(
        number=7, at=ago(60), kind="retry", error=None, status=200, detail=None, fault=None, duration=0.1
    )
    last = [
        attempt(
            number=n + 1, at=ago(50 * 3_600 - due(n)), kind="retry" if n else "first", duration=0.2, error="connect"
        )
        for n in range(12)
    ]
    accepted = ago(begun + 2)
    return [
        message(1, accepted_at=accepted, attempts=tried, retry=5, next_attempt_at=ahead(due(6) - due(5) - 467)),
        message(2, accepted_at=accepted, attempts=[*tried, *probes], retry=5, state="held"),
        message(3, accepted_at=accepted, attempts=[*tried, delivered], retry=6, state="delivered", finished_at=ago(60),
                next_attempt_at=None),
        message(4, accepted_at=ago(50 * 3_600 + 2), attempts=last, retry=11, state="dead", dead_reason="exhausted",
                finished_at=ago(50 * 3_600 - due(11)), next_attempt_at=None),
        message(5, accepted_at=ago(40), attempts=[attempt(at=ago(38), status=429, error=None, detail=None)],
                retry=0, next_attempt_at=ahead(47)),
        message(6, accepted_at=ago(3), state="in_flight", retry=0, next_attempt_at=None),
        message(7, accepted_at=ago(5 * 3_600), attempts=[attempt(at=ago(20), detail=HOSTILE, answer=HOSTILE)],
                host=f"{HOSTILE}:443", target=HOSTILE, route=HOSTILE, retry=0, next_attempt_at=ahead(40)),
    ]  # fmt: skip
