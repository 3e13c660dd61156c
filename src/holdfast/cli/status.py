"""`holdfast status`, `drain` and `reload`: the gateway as a whole."""

import json
from datetime import datetime, timedelta
from typing import Any

from holdfast.cli.arguments import add_control, add_watch, command_parser
from holdfast.cli.command_error import CommandError
from holdfast.cli.control_client import ControlClient, Document
from holdfast.cli.output import colour_wanted, count, facts, gateway_time, human_size, painted, relative, show_view

_DEGRADED = {
    "store_away": "the database is unreachable: delivery resumes by itself when it is back",
    "store_full": "the store is full: new webhooks are refused with 507 until there is room",
}


def status(arguments: list[str]) -> int:
    parser = command_parser("status")
    add_watch(parser)
    add_control(parser)
    options = parser.parse_args(arguments)
    with ControlClient(options) as client:
        show_view(lambda: _view(client, options.json), watch=options.watch, as_json=options.json)
    return 0


def _view(client: ControlClient, as_json: bool) -> list[str]:
    document = client.get("/v1/status")
    return [json.dumps(document)] if as_json else status_lines(document, gateway_time(document), colour_wanted())


def status_lines(document: Document, now: datetime, colour: bool = False) -> list[str]:
    problems = _problems(document)
    verdict = painted("not healthy" if problems else "healthy", colour)
    return [
        f"{verdict}: {'; '.join(problems)}" if problems else verdict,
        *facts(
            [
                ("gateway", _gateway(document, now)),
                *_clock(document.get("clock", {})),
                ("store", _store(document["store"])),
                *_waiting(document, now),
                *_spooled(document["store"], now),
                ("dead", f"{document['store']['dead']:,}"),
                ("circuits", ", ".join(f"{number:,} {state}" for state, number in document["circuits"].items())),
                ("totals", _totals(document["totals"])),
            ]
        ),
    ]


def _problems(document: Document) -> list[str]:
    problems = [_DEGRADED.get(each, each) for each in document["degraded"]]
    if document["draining"]:
        problems.append("draining: it finishes what is due")
    elif not document["ready"] and "store_away" not in document["degraded"]:
        problems.append("not ready: it is starting, or its store failed")
    return problems


def _gateway(document: Document, now: datetime) -> str:
    started = relative(document["started_at"], now)
    role = f", role {document['role']}" if "role" in document else ""
    return f"holdfast {document['version']}, process {document['pid']}, started {started}{role}"


def _clock(clock: Document) -> list[tuple[str, str]]:
    if not clock.get("off"):
        return []
    seconds = clock["offset"]
    # To the second: people subtract it to compare a time shown here with one from elsewhere.
    offset = f"{timedelta(seconds=round(abs(seconds)))} {'ahead of' if seconds > 0 else 'behind'}"
    return [("clock", f"{offset} the wall clock, which signatures use")]


def _store(store: Document) -> str:
    used, most = store["used_bytes"], store["max_bytes"]
    share = f" ({used / most:.0%})" if most else ""
    # Gateways of older versions have no reserve.
    reserved = store.get("reserved_bytes", 0)
    reserve = f" and {human_size(reserved)} ({reserved / most:.0%}) reserved for outcomes," if reserved and most else ""
    return f"{human_size(used)} of {human_size(most)} used{share}{reserve} in {store['path']}"


def _waiting(document: Document, now: datetime) -> list[tuple[str, str]]:
    waiting, queues, expiry = document["store"]["waiting"], document["queues"], document["earliest_expiry_at"]
    in_flight = f"{document['in_flight']:,} in flight"
    if not waiting:
        return [("waiting", f"nothing; {in_flight}")]
    return [
        ("waiting", f"{waiting:,}: {queues['first']:,} first attempts, {queues['retry']:,} retries; {in_flight}"),
        ("oldest", relative(document["oldest_waiting_at"], now)),
        ("next due", relative(document["next_due_at"], now)),
        ("expiry", f"the earliest {relative(expiry, now)}" if expiry else "none: every circuit is enabled"),
    ]


def _spooled(store: Document, now: datetime) -> list[tuple[str, str]]:
    if not store.get("spool"):
        return []
    first = relative(store["spooling_since"], now)
    return [("spool", f"{store['spool']:,} wait on this machine's disk for the database; the first came {first}")]


def _totals(totals: dict[str, Any]) -> str:
    """Each total since the start, with its kinds where it is counted by kind."""
    return "; ".join(f"{_words(name)} {_total(value)}" for name, value in totals.items())


def _total(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:,}"
    kinds = ", ".join(f"{_words(kind)} {number:,}" for kind, number in value.items())
    return f"{sum(value.values()):,}" + (f" ({kinds})" if kinds else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


# -- drain and reload ------------------------------------------------------------------------------------------------


def drain(arguments: list[str]) -> int:
    parser = command_parser("drain")
    how = parser.add_mutually_exclusive_group()
    wait = "wait until nothing is due or in flight; exit with 1 after drain.timeout"
    how.add_argument("--wait", action="store_true", help=wait)
    how.add_argument("--cancel", action="store_true", help="be ready again")
    add_control(parser)
    options = parser.parse_args(arguments)
    body = {name: True for name in ("wait", "cancel") if getattr(options, name)}
    with ControlClient(options) as client:
        # The gateway answers after its own drain.timeout at the latest.
        answer = client.post("/v1/drain", body, None)
    is_late = options.wait and not answer["quiet"]
    if options.json:
        print(json.dumps(answer))
    elif not is_late:
        print(drain_text(answer))
    if is_late:
        raise CommandError(f"still not quiet after drain.timeout: {_unfinished(answer)}")
    return 0


def drain_text(answer: Document) -> str:
    if not answer["draining"]:
        return "not draining: it is ready"
    return f"draining: {'nothing is due or in flight' if answer['quiet'] else _unfinished(answer)}"


def _unfinished(answer: Document) -> str:
    in_flight = answer["in_flight"]
    return f"{count(in_flight, 'attempt')} in flight" if in_flight else "some messages are due"


def reload(arguments: list[str]) -> int:
    parser = command_parser("reload")
    add_control(parser)
    options = parser.parse_args(arguments)
    with ControlClient(options) as client:
        answer = client.post("/v1/reload", {})
    if options.json:
        print(json.dumps(answer))
        return 0
    print(f"reloaded: {', '.join(answer['changed']) or 'nothing has changed'}")
    if answer["needs_restart"]:
        print(f"waits for a restart: {', '.join(answer['needs_restart'])}")
    return 0
