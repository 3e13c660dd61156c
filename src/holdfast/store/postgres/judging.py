"""What outcomes do to circuits and hosts: with their rows locked, so that replicas count together and a circuit changes
once.

Rows are locked at the end of a transaction and in the order of their keys, a row for all outcomes of a host in it: a
host that everyone sends to is one lock a group, held for a round trip and the commit.
"""

from dataclasses import dataclass, field

from holdfast.core.circuit import BUCKETS, Change, Circuit, CircuitRules, CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import Host
from holdfast.core.message import Fault
from holdfast.store import records
from holdfast.store.port import LaneRecord, Report
from holdfast.store.postgres import rows
from holdfast.store.postgres.connection import Connection, Cursor
from holdfast.store.postgres.terms import Terms


@dataclass(slots=True)
class Bench:
    """The circuits and hosts that one transaction judges."""

    terms: Terms
    circuits: dict[str, Circuit] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    _host_of: dict[str, str] = field(default_factory=dict)
    _before: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    _locked: tuple[Cursor, Cursor] | None = None

    def lock(self, connection: Connection, lanes: dict[str, str]) -> None:
        """Lock the rows of some lanes and of their hosts; `sit` takes them, once the pipeline is over that this may
        be a part of.
        """
        if not lanes:
            return
        self._host_of.update(lanes)
        names, hosts = sorted(lanes), sorted(set(lanes.values()))
        self._locked = (
            connection.execute(
                "SELECT lane, spell, record FROM lanes WHERE lane = ANY(%s) ORDER BY lane FOR UPDATE", (names,)
            ),
            connection.execute(
                "SELECT host, most, streak, hold_until, run FROM hosts WHERE host = ANY(%s) ORDER BY host FOR UPDATE",
                (hosts,),
            ),
        )

    def sit(self) -> None:
        """What has no row yet gets one when it is saved."""
        if self._locked is None:
            return
        lanes, limits = self._locked
        found = {lane: (spell, record) for lane, spell, record in lanes.fetchall()}
        kept = {row[0]: row[1:] for row in limits.fetchall()}
        for lane in sorted(self._host_of):
            self.circuits[lane] = _circuit(*found[lane]) if lane in found else self._new_circuit()
        for host in sorted(set(self._host_of.values())):
            most, streak, hold_until, run = kept.get(host, (0, 0, 0, self.terms.run))
            self.hosts[host] = host_of(host, most, streak, hold_until, run, self.terms)
            self._before[host] = (most, streak, hold_until, run)

    def _new_circuit(self) -> Circuit:
        return Circuit(since=self.terms.now, enabled_at=self.terms.now)

    def judge(self, lane: str, report: Report) -> Change | None:
        """One outcome."""
        rules, circuit, host = self.terms.rules.circuit, self.circuits[lane], self.hosts[self._host_of[lane]]
        _begin(circuit, report.began)
        at = _not_before(circuit, rules, report.ended)
        change = None
        if report.fault is None:
            change = circuit.succeeded(rules, at, spell=report.spell, probe=report.probe)
            host.succeeded()
        elif report.fault is Fault.HOST:
            change = circuit.failed(rules, at, spell=report.spell)
            host.failed()
        host.hold_until = max(host.hold_until, report.hold_until)
        self.note(lane, change)
        return change

    def note(self, lane: str, change: Change | None) -> None:
        """A circuit that was just enabled is approached carefully."""
        if change is not None:
            self.changed.add(lane)
            if change.after is CircuitState.ENABLED:
                self.hosts[self._host_of[lane]].slow_start()

    def set(self, lane: str, circuit: Circuit, host: Host) -> None:
        """Take a circuit and a limit as they are given."""
        self.circuits[lane] = circuit
        self.hosts[host.name] = host
        self.changed.add(lane)

    def save(self, connection: Connection) -> None:
        """Write what was judged; in the same transaction."""
        lanes = sorted(self.circuits)
        circuits = [self.circuits[lane] for lane in lanes]
        hosts = [self._host_of[lane] for lane in lanes]
        connection.execute(
            """INSERT INTO lanes AS l (lane, host, state, spell, changed_at, record)
            SELECT v.lane, v.host, v.state, v.spell, %s::bigint, v.record
            FROM unnest(%s::text[], %s::text[], %s::smallint[], %s::integer[], %s::bytea[])
                AS v(lane, host, state, spell, record)
            ON CONFLICT (lane) DO UPDATE SET host = excluded.host, state = excluded.state, spell = excluded.spell,
                record = excluded.record,
                changed_at = CASE WHEN l.spell = excluded.spell THEN l.changed_at ELSE excluded.changed_at END""",
            (
                self.terms.now,
                lanes,
                hosts,
                [rows.STATE_NUMBERS[circuit.state] for circuit in circuits],
                [circuit.spell for circuit in circuits],
                [rows.encode_circuit(*each) for each in zip(lanes, hosts, circuits, strict=True)],
            ),
        )
        self._save_hosts(connection)

    def _save_hosts(self, connection: Connection) -> None:
        run = self.terms.run
        after = {name: (_most(host), host.streak, host.hold_until, run) for name, host in sorted(self.hosts.items())}
        changed = {name: row for name, row in after.items() if row != self._before.get(name)}
        if not changed:
            return
        columns = [list(column) for column in zip(*changed.values(), strict=True)]
        connection.execute(
            """INSERT INTO hosts (host, most, streak, hold_until, run)
            SELECT * FROM unnest(%s::text[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[])
            ON CONFLICT (host) DO UPDATE SET most = excluded.most, streak = excluded.streak,
                hold_until = excluded.hold_until, run = excluded.run""",
            (list(changed), *columns),
        )

    def record(self, lane: str) -> LaneRecord:
        """A lane as it is when this is committed."""
        host = self.hosts[self._host_of[lane]]
        return LaneRecord(lane, host.name, self.circuits[lane], host.limit, self.terms.run, host.hold_until)


def host_of(name: str, most: int, streak: int, hold_until: int, run: int, terms: Terms) -> Host:
    """A host's row as core knows hosts. `most` is the limit while it grows, 0 once it is the full one; what was there
    before the fleet began starts slowly.
    """
    per_host = terms.rules.per_host
    if run != terms.run:
        most, streak = 1, 0
    limit = min(most, per_host) if most else per_host
    return Host(name, per_host, limit, streak=streak, hold_until=hold_until, known=True)


def _most(host: Host) -> int:
    return 0 if host.limit >= host.per_host else host.limit


def _circuit(spell: int, record: bytes) -> Circuit:
    """One that can't be read starts anew, in a spell of its own."""
    try:
        circuit = records.decode_lane(record).circuit
    except CorruptRecord:
        return Circuit(spell=spell + 1)
    circuit.spell = spell
    return circuit


def _begin(circuit: Circuit, began: int) -> None:
    """What the start of an attempt leaves in a circuit, told with its end."""
    if circuit.first_attempt_at is None:
        circuit.first_attempt_at = began
    if circuit.silent_since is None:
        circuit.silent_since = began
    circuit.last_attempt_at = max(circuit.last_attempt_at or 0, began)


def _not_before(circuit: Circuit, rules: CircuitRules, ended: int) -> int:
    """Outcomes of several replicas come in any order; the window only ever goes on."""
    width = max(1, rules.window // BUCKETS)
    newest = circuit.window.buckets[-1][0] * width if circuit.window.buckets else 0
    # One that is far ahead was counted in other buckets, before `circuit.window` was changed.
    return newest if ended < newest <= ended + rules.window else ended
