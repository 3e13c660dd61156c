"""What the contract says must happen, computed naively from what was seen to happen, and without holdfast's core.

A circuit is the list of its outcomes: the window and the run of failures are counted anew each time. What is kept
beside the list is what only changes with a change of state, one `Standing` after each outcome, so that a crash can take
the last ones back.
"""

from dataclasses import dataclass, field, replace
from typing import Any

ENABLED, DISABLED, FROZEN = "enabled", "disabled", "frozen"
WAITING, DELIVERED, EXHAUSTED, EXPIRED, DROPPED = "waiting", "delivered", "exhausted", "expired", "dropped"
BUCKETS = 60
MOMENT = 6_000
"""Milliseconds within which two things may have crossed."""


@dataclass(frozen=True)
class Outcome:
    """One entry of a circuit's history; `ok` None is an operator's act. `width` is that of the bucket it counted in."""

    at: int
    ok: bool | None
    width: int = 0
    durable: bool = False
    needed: bool = True


@dataclass(frozen=True)
class Standing:
    """A circuit between two outcomes. `window_from` and `run_from` are places in its history."""

    state: str = ENABLED
    reason: str | None = None
    since: int | None = None
    generation: int = 0
    enabled_at: int = 0
    silent_since: int | None = None
    window_from: int = 0
    run_from: int = 0


@dataclass
class CircuitModel:
    key: str
    history: list[Outcome] = field(default_factory=list)
    standings: list[Standing] = field(default_factory=lambda: [Standing()])
    next_probe: int = 0
    probe_asked: bool = False
    probed: dict[str, int] = field(default_factory=dict)
    probed_in_run: bool = False
    idle_since: int = 0
    idle_before: int = 0
    forgotten: bool = False

    @property
    def now(self) -> Standing:
        return self.standings[-1]

    def busy(self, at: int) -> None:
        """Something of it came or was tried; `idle_before` is the time before the last few seconds of that."""
        if at - self.idle_since > MOMENT:
            self.idle_before = self.idle_since
        self.idle_since = at

    def begins(self, at: int, rules: Any, *, probe: bool) -> int:
        """An attempt starts; its outcome has to name the generation."""
        if self.now.silent_since is None:
            self.standings[-1] = replace(self.now, silent_since=at)
        self.busy(at)
        if probe:
            self.next_probe = at + rules.probe_every
            self.probe_asked = False
        return self.now.generation

    def ended(self, at: int, ok: bool, rules: Any, *, generation: int, probe: bool) -> None:
        """An outcome that counts: 2xx, or a failure of the host's."""
        needed = not ok or self.has_failed(at, rules)
        self.history.append(Outcome(at, ok, _width(rules), needed=needed))
        before = self.now
        after = replace(before, silent_since=at) if ok else before
        if ok and probe and generation == before.generation and before.state == DISABLED:
            after = self._changed(after, ENABLED, None, at)
        elif not ok and generation == before.generation:
            verdict = self._verdict(at, rules)
            after = self._changed(after, *verdict, at) if verdict else after
        self._enter(after, rules)

    def by_operator(self, at: int, rules: Any, *, freeze: bool) -> None:
        self.history.append(Outcome(at, None))
        after = self._changed(self.now, FROZEN if freeze else ENABLED, "operator" if freeze else None, at)
        if not freeze:
            after = replace(after, silent_since=at, run_from=len(self.history))
        self._enter(after, rules)

    def run_of_failures(self) -> int:
        run = 0
        for outcome in reversed(self.history[self.now.run_from :]):
            if outcome.ok:
                break
            run += outcome.ok is False
        return run

    def window(self, at: int, rules: Any) -> tuple[int, int]:
        """Attempts and failures in the current bucket and the 59 before it, since the circuit was enabled."""
        width, counted, failed = _width(rules), 0, 0
        for outcome in reversed(self.history[self.now.window_from :]):
            if outcome.ok is None:
                continue
            if outcome.width != width or outcome.at // width < at // width - (BUCKETS - 1):
                break
            counted += 1
            failed += not outcome.ok
        return counted, failed

    def has_failed(self, at: int, rules: Any) -> bool:
        return bool(self.run_of_failures() or self.window(at, rules)[1])

    @property
    def last_success(self) -> int | None:
        return next((outcome.at for outcome in reversed(self.history) if outcome.ok), None)

    def written(self, number: int) -> None:
        """So much of its history is on disk."""
        for place in range(min(number, len(self.history)) - 1, -1, -1):
            if self.history[place].durable:
                break
            self.history[place] = replace(self.history[place], durable=True)

    def cut_back(self) -> tuple[int, int]:
        """A crash: what was not on disk did not happen. How much of the rest has to be there, and may be."""
        while self.history and not self.history[-1].durable:
            self.history.pop()
            self.standings.pop()
        needed = [place + 1 for place, outcome in enumerate(self.history) if outcome.needed]
        return max(needed, default=0), len(self.history)

    def keep(self, number: int) -> None:
        del self.history[number:]
        del self.standings[number + 1 :]

    def _enter(self, after: Standing, rules: Any) -> None:
        if after.generation != self.now.generation:
            self.probed.clear()
            self.probe_asked = False
            self.next_probe = (after.since or 0) + rules.probe_every
            if after.state == ENABLED:
                after = replace(after, window_from=len(self.history))
        self.standings.append(after)

    def _changed(self, before: Standing, state: str, reason: str | None, at: int) -> Standing:
        enabled_at = at if state == ENABLED else before.enabled_at
        return replace(
            before, state=state, reason=reason, since=at, generation=before.generation + 1, enabled_at=enabled_at
        )

    def _verdict(self, at: int, rules: Any) -> tuple[str, str] | None:
        run, state = self.run_of_failures(), self.now.state
        if state == FROZEN:
            return None
        if rules.freeze_at and run >= rules.freeze_at:
            return FROZEN, "consecutive_limit"
        silence = at - (self.now.silent_since or at)
        if rules.freeze_after and run > rules.freeze_after and 0 < rules.freeze_silence < silence:
            return FROZEN, "silence"
        if state == DISABLED:
            return None
        attempts, failures = self.window(at, rules)
        enough = rules.min_attempts and attempts > rules.min_attempts
        if enough and 0 < rules.failure_rate < failures / attempts:
            return DISABLED, "failure_rate"
        if rules.disable_after and run >= rules.disable_after:
            return DISABLED, "consecutive_failures"
        return None


@dataclass
class HostModel:
    """Limits of one host:port in one run. `may_hold_until` is what one of its circuits knew at the start, if read."""

    name: str
    limit: int
    per_host: int
    successes: int = 0
    hold_until: int = 0
    may_hold_until: int = 0
    not_before: float = 0.0
    in_flight: dict[str, str] = field(default_factory=dict)
    owes_slow_start: int | None = None

    def slow_start(self) -> None:
        self.limit = min(1, self.per_host)
        self.successes = 0
        self.owes_slow_start = None

    def succeeded(self) -> None:
        if self.limit == self.per_host:
            return
        self.successes += 1
        if self.successes == self.limit:
            self.limit, self.successes = min(self.limit * 2, self.per_host), 0

    def failed(self) -> None:
        """A host at its full limit is judged by its circuit."""
        if self.limit != self.per_host:
            self.slow_start()

    def resize(self, per_host: int) -> None:
        self.limit = per_host if self.limit == self.per_host else min(self.limit, per_host)
        self.per_host = per_host

    def retries(self) -> int:
        return sum(kind == "retry" for kind in self.in_flight.values())


@dataclass(frozen=True)
class Life:
    """Where a message stands. `tried` counts the scheduled attempts of this life that failed."""

    state: str = WAITING
    born: int = 0
    due: int = 0
    held: bool = False
    tried: int = 0
    attempts: int = 0
    ended: int = 0


@dataclass
class MessageModel:
    """`now` is where it stands, `disk` where it would after a crash at this moment."""

    id: str
    lane: str
    host: str
    size: int
    delayed: bool
    now: Life
    disk: Life
    started: bool = False
    lives: int = 1
    may_be_gone: bool = False
    waits_since: int = 0

    @property
    def waiting(self) -> bool:
        return self.now.state == WAITING

    def held_at(self, moment: int) -> bool:
        return self.now.held and self.now.due > moment

    def failed(self, at: int, rules: Any, retry_after: int | None, chance: float) -> None:
        """A scheduled attempt failed: the next is due, or that was the last. `chance` was drawn for the jitter."""
        life, tried = self.now, self.now.tried + 1
        if tried > rules.max_retries:
            self.now = replace(life, state=EXHAUSTED, tried=tried, attempts=life.attempts + 1, ended=at)
            return
        wait = 2 ** (tried - 1) * rules.base
        due = scheduled = at + wait + int(wait * rules.jitter * chance)
        if retry_after is not None:
            due = max(due, min(retry_after, scheduled + rules.retry_after_limit))
        self.now = Life(WAITING, life.born, due, due > scheduled, tried, life.attempts + 1)

    def replayed(self, at: int) -> None:
        self.lives += 1
        self.now = self.disk = Life(born=at, due=at, attempts=self.now.attempts)


def _width(rules: Any) -> int:
    return int(max(1, rules.window // BUCKETS))
