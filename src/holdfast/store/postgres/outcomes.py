"""What the ends of attempts change: one group, one transaction.

An outcome counts only while its message is still this replica's: claimed under the number that it was taken under, and
not tried since. A replica that was taken for dead can't record anything for a message that has gone to another, and a
group that is written again because nobody heard that it was changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.circuit import Circuit
from holdfast.core.history import LAST_ANSWERS_KEPT, LAST_KEPT, recorded
from holdfast.core.message import Attempt, Entry, MessageId
from holdfast.core.schedule import Dead, RetryAt
from holdfast.store import records
from holdfast.store.port import Deliver, Fail, Operation, SaveLane, Shelve, Switch, Verb, Verdict
from holdfast.store.postgres import waking
from holdfast.store.postgres.connection import Connection, beginning, commit_along
from holdfast.store.postgres.counting import Counts
from holdfast.store.postgres.judging import Bench
from holdfast.store.postgres.rows import DEAD, NUMBERS, REASONS, RETRY, WAITING
from holdfast.store.postgres.terms import Terms

TOGETHER = (Deliver, Fail, Shelve, SaveLane)
"""Operations that may share a transaction."""


def share_a_transaction(operations: Sequence[Operation]) -> int:
    """How many of the first of these do: until a message comes again, since only one of its outcomes can find it."""
    met: set[MessageId] = set()
    for count, operation in enumerate(operations):
        ids = _messages_of(operation)
        if not isinstance(operation, TOGETHER) or not met.isdisjoint(ids):
            return count
        met |= ids
    return len(operations)


def _messages_of(operation: Operation) -> set[MessageId]:
    if isinstance(operation, Shelve):
        return {message.id for message in operation.messages}
    return {operation.entry.message.id} if isinstance(operation, (Deliver, Fail)) else set()


@dataclass(slots=True)
class _Group:
    operations: Sequence[Operation]
    terms: Terms
    counts: Counts = field(default_factory=Counts)
    claimable: dict[str, int] = field(default_factory=dict)
    mine: set[MessageId] = field(default_factory=set)

    def of(self, kind: type[Any]) -> list[Any]:
        return [operation for operation in self.operations if isinstance(operation, kind)]

    def frees(self, lane: str, moment: int) -> None:
        self.claimable[lane] = min(moment, self.claimable.get(lane, moment))


def record(connection: Connection, operations: Sequence[Operation], terms: Terms) -> list[Any]:
    """Carry out a group of outcomes; results as the port has them."""
    group = _Group(operations, terms)
    _move(connection, group)
    bench = Bench(terms)
    lanes = _lanes_of(group)
    with connection.pipeline():
        _keep_delivered(connection, group)
        _keep_attempts(connection, group)
        group.counts.write(connection, terms.writer)
        bench.lock(connection, lanes)
    bench.sit()
    results = [_judge(operation, group, bench) for operation in operations]
    with connection.pipeline():
        if lanes:
            bench.save(connection)
        if not group.claimable and not bench.changed:
            commit_along(connection)
    calm = {lane: at for lane, at in group.claimable.items() if lane not in bench.changed}
    waking.lower(connection, calm, terms)
    waking.review(connection, bench.changed, terms)
    waking.hint(connection, sorted(bench.changed), terms)
    connection.commit()
    return results


def switch(connection: Connection, operation: Switch, terms: Terms) -> Verdict:
    """An operator's word."""
    bench, key = Bench(terms), operation.lane
    bench.lock(connection, {key: operation.host})
    bench.sit()
    circuit, rules = bench.circuits[key], terms.rules.circuit
    change = None
    if operation.verb is Verb.FREEZE:
        change = circuit.freeze(rules, operation.now)
    elif operation.verb is Verb.UNFREEZE:
        change = circuit.unfreeze(rules, operation.now)
        if change is not None:
            bench.hosts[operation.host].hold_until = 0
    elif circuit.next_probe_at is not None and not _is_probed_now(connection, circuit):
        circuit.next_probe_at = min(circuit.next_probe_at, operation.now)
    bench.note(key, change)
    bench.save(connection)
    waking.review(connection, [key], terms)
    waking.hint(connection, [key], terms)
    connection.commit()
    return Verdict(bench.record(key), change)


def _is_probed_now(connection: Connection, circuit: Circuit) -> bool:
    """Whether a replica has the last probe under way: another right behind it would be one too many."""
    if circuit.probed is None:
        return False
    found = connection.execute("SELECT owner FROM messages WHERE id = %s", (circuit.probed[8:],)).fetchone()
    return found is not None and found[0] is not None


def _claim(entry: Entry, terms: Terms) -> tuple[MessageId, int, int]:
    """What tells a message's claim from any other one, also of the same replica's."""
    return entry.message.id, entry.fence or terms.number, entry.place.attempts


def _move(connection: Connection, group: _Group) -> None:
    """Take the messages from where they are, if they are ours."""
    terms = group.terms
    delivers: list[Deliver] = group.of(Deliver)
    fails: list[Fail] = group.of(Fail)
    shelved = [message for shelve in group.of(Shelve) for message in shelve.messages]
    with beginning(connection):
        under_way = [
            connection.execute(query, _columns(values)) if values else None
            for query, values in (
                (_GONE, [_claim(each.entry, terms) for each in delivers]),
                (_TRIED, [_tried(each, terms) for each in fails]),
                (_BACK, [(message.id, terms.number) for message in shelved]),
            )
        ]
    gone, tried, returned = [each.fetchall() if each is not None else [] for each in under_way]
    group.mine = {row[0] for row in (*gone, *tried, *returned)}
    for _, lane, standing, due in returned:
        group.frees(lane, due if standing == RETRY else terms.now)
    for deliver in delivers:
        message, place, _ = deliver.entry
        if message.id in group.mine:
            group.counts.leave(message.host, message.lane, NUMBERS[place.standing], len(message.body))
    for fail in fails:
        _count_failure(fail, group)


_GONE = """DELETE FROM messages m USING unnest(%s::bytea[], %s::bigint[], %s::integer[]) AS v(id, fence, tried)
    WHERE m.id = v.id AND m.owner = v.fence AND m.attempts = v.tried RETURNING m.id"""
_BACK = """UPDATE messages m SET owner = NULL, standing = greatest(standing, 1)
    FROM unnest(%s::bytea[], %s::bigint[]) AS v(id, fence)
    WHERE m.id = v.id AND m.owner = v.fence AND standing < 3 RETURNING m.id, lane, standing, due"""
_TRIED = """UPDATE messages m SET standing = v.standing, due = v.due, retry = v.retry, attempts = v.attempts,
        held = v.held, reason = v.reason, owner = NULL
    FROM unnest(%s::bytea[], %s::bigint[], %s::integer[], %s::smallint[], %s::bigint[], %s::smallint[], %s::integer[],
        %s::boolean[], %s::smallint[])
        AS v(id, fence, tried, standing, due, retry, attempts, held, reason)
    WHERE m.id = v.id AND m.owner = v.fence AND m.attempts = v.tried RETURNING m.id"""


def _tried(fail: Fail, terms: Terms) -> tuple[Any, ...]:
    """A row's new values after a failed attempt. Without a step it stays where it was, for anyone to claim."""
    place, attempt, step = fail.entry.place, fail.attempt, fail.step
    head = _claim(fail.entry, terms)
    if isinstance(step, RetryAt):
        return (*head, RETRY, step.due, step.retry, attempt.number, step.held, None)
    if isinstance(step, Dead):
        died = attempt.at + attempt.duration
        return (*head, DEAD, died, place.retry, attempt.number, False, REASONS.index(step.reason))
    standing = max(NUMBERS[place.standing], WAITING)
    return (*head, standing, place.due, place.retry, attempt.number, place.held, None)


def _columns(tuples: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*tuples, strict=True)]


def _count_failure(fail: Fail, group: _Group) -> None:
    message, place, _ = fail.entry
    if message.id not in group.mine:
        return
    before = NUMBERS[place.standing]
    if isinstance(fail.step, Dead):
        group.counts.move(message.host, message.lane, before, DEAD)
        return
    after = RETRY if isinstance(fail.step, RetryAt) else max(before, WAITING)
    group.counts.move(message.host, message.lane, before, after)
    moment = fail.step.due if isinstance(fail.step, RetryAt) else place.due if after == RETRY else group.terms.now
    group.frees(message.lane, moment)


def _keep_delivered(connection: Connection, group: _Group) -> None:
    kept = []
    for deliver in group.of(Deliver):
        message, attempt = deliver.entry.message, deliver.attempt
        if message.id in group.mine:
            finished = attempt.at + attempt.duration
            kept.append((message.id, group.terms.now, records.encode_delivered(message, attempt, finished)))
    if kept:
        connection.execute(
            """INSERT INTO delivered (id, at, record) SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[])
            ON CONFLICT (id) DO NOTHING""",
            _columns(kept),
        )


def _keep_attempts(connection: Connection, group: _Group) -> None:
    """Those that core.history keeps, with the answers of a few."""
    made: list[tuple[MessageId, Attempt]] = [
        (fail.entry.message.id, fail.attempt) for fail in group.of(Fail) if fail.entry.message.id in group.mine
    ]
    insert_attempts(connection, made)
    silent = [
        (id, attempt.number - LAST_ANSWERS_KEPT) for id, attempt in made if attempt.number > LAST_ANSWERS_KEPT + 1
    ]
    if silent:
        connection.execute(
            """UPDATE attempts a SET answer = NULL FROM unnest(%s::bytea[], %s::integer[]) AS v(id, number)
            WHERE a.id = v.id AND a.number = v.number""",
            _columns(silent),
        )
    dropped = [(id, each.number - LAST_KEPT) for id, each in made if each.number > LAST_KEPT + 1]
    if dropped:
        connection.execute(
            """DELETE FROM attempts a USING unnest(%s::bytea[], %s::integer[]) AS v(id, number)
            WHERE a.id = v.id AND a.number > 1 AND a.number <= v.number""",
            _columns(dropped),
        )


def insert_attempts(connection: Connection, made: Sequence[tuple[MessageId, Attempt]]) -> None:
    if not made:
        return
    kept = [
        (id, attempt.number, records.encode_attempt(attempt._replace(answer=None)), attempt.answer)
        for id, attempt in ((id, recorded(attempt)) for id, attempt in made)
    ]
    connection.execute(
        """INSERT INTO attempts (id, number, record, answer)
        SELECT * FROM unnest(%s::bytea[], %s::integer[], %s::bytea[], %s::bytea[])
        ON CONFLICT (id, number) DO NOTHING""",
        _columns(kept),
    )


def _lanes_of(group: _Group) -> dict[str, str]:
    """The lanes whose circuits are to be judged or written, with their hosts."""
    lanes: dict[str, str] = {save.lane.key: save.lane.host.name for save in group.of(SaveLane)}
    for kind in (Deliver, Fail):
        for each in group.of(kind):
            message = each.entry.message
            if message.id in group.mine and (each.report is not None or each.lane is not None):
                lanes[message.lane] = message.host
    return lanes


def _judge(operation: Operation, group: _Group, bench: Bench) -> Any:
    if isinstance(operation, Shelve):
        return len(_messages_of(operation) & group.mine)
    if isinstance(operation, SaveLane):
        bench.set(operation.lane.key, operation.lane.circuit, operation.lane.host)
        return None
    assert isinstance(operation, (Deliver, Fail))
    is_mine = operation.entry.message.id in group.mine
    if operation.report is None:
        if is_mine and operation.lane is not None:
            bench.set(operation.lane.key, operation.lane.circuit, operation.lane.host)
        return None
    if not is_mine:
        return Verdict(None, fenced=True)
    lane = operation.entry.message.lane
    change = bench.judge(lane, operation.report)
    return Verdict(bench.record(lane), change)
