"""What should have happened by now: the other half of every rule about when something may happen."""

from tests.sim.disk import DiskWitness
from tests.sim.model import DISABLED, ENABLED, MOMENT, CircuitModel, MessageModel
from tests.sim.witness import FIRST, PROBE, RETRY

SLACK = 6_000
"""Milliseconds: a lane may be looked at a second late, and the disk takes its time."""
EXPIRY_TAKES = 70_000


def overdue(witness: DiskWitness, slack: int = SLACK) -> list[str]:
    """Messages that wait although nothing holds them back, each with what it should have had."""
    now = witness.clock()
    owing = [host for host in witness.hosts.values() if host.owes_slow_start is not None]
    found = [f"replayed without a slow start of {host.name}" for host in owing if host.owes_slow_start + MOMENT < now]
    for message in witness.messages.values():
        host, circuit = witness.host(message.host), witness.circuit(message.lane)
        if not message.waiting or host.in_flight:
            continue
        peace = max(host.hold_until, host.may_hold_until, int(host.not_before))
        ready = max(message.waits_since, witness.started_at, circuit.now.since or 0, witness.changed_at, peace) + slack
        if ready > now:
            continue
        late = _late(witness, message, circuit, now - slack)
        if late:
            found.append(f"{message.id} to {message.lane}: {late}")
    return found


def _late(witness: DiskWitness, message: MessageModel, circuit: CircuitModel, latest: int) -> str | None:
    life, numbers = message.now, witness.config.delivery
    if circuit.now.state == ENABLED:
        kinds, size = ((RETRY, PROBE), numbers.retries) if life.tried else ((FIRST,), numbers.first_attempts)
        if life.due <= latest and witness.in_flight(*kinds) < _least_share(size):
            return f"due since {life.due}, and not started"
        return None
    if circuit.now.state == DISABLED:
        from_when = max(circuit.next_probe, life.due if life.held else 0)
        if from_when <= latest and witness.in_flight(RETRY, PROBE) < _least_share(numbers.retries):
            return f"could be a probe since {from_when}, and there was none"
    expiry = max(life.born, circuit.now.enabled_at) + witness.config.retry.expire_after
    grace = witness.started_at + witness.grace
    if circuit.now.state == DISABLED and not circuit.probed_in_run:
        return None
    if max(expiry, grace, circuit.now.since or 0) + EXPIRY_TAKES <= latest and not witness.numbers_changed:
        return f"should have expired at {expiry}"
    return None


def _least_share(size: int) -> int:
    """What hosts of any kind have of a budget: those that do not answer have a quarter."""
    return max(1, size // 4)
