"""What an outcome is to a store that replicas share: a report. Circuits and limits are changed there, where all reports
meet, and come back with the verdict; what follows for the message is decided here as ever.
"""

import logging

from holdfast.core.board import Start
from holdfast.core.message import Attempt, Fault, Kind, id_text
from holdfast.core.outcome import Outcome
from holdfast.core.schedule import Dead
from holdfast.delivery.settling import Settlement, Settling, due_of
from holdfast.store.port import Deliver, Fail, Report, Verdict


class FleetSettling(Settling):
    def judged(self, start: Start, settlement: Settlement, verdict: Verdict) -> None:
        """The store's word on an outcome. A change of state is told by the replica whose outcome caused it, so once."""
        operation = settlement.operation
        if verdict.fenced:
            self._tell_fenced(start)
        elif isinstance(operation, Fail) and isinstance(operation.step, Dead):
            self._tell_dead(start, operation.attempt, operation.step)
        if verdict.change is not None:
            self.tell_change(start.lane, verdict.change)

    def _delivered(self, start: Start, attempt: Attempt, now: int) -> Settlement:
        self._tell_delivery(start, attempt, now)
        return Settlement(Deliver(start.entry, attempt, None, _report(start, attempt, 0)), None, None)

    def _failed(self, start: Start, attempt: Attempt, outcome: Outcome, now: int) -> Settlement:
        lane, peace = start.lane, self._peace(outcome, now)
        # Also until the verdict comes.
        lane.host.hold_until = max(lane.host.hold_until, peace)
        if outcome.fault is Fault.HOST:
            lane.host.failed()
        step = self._step(start, outcome, now)
        self._tell_failure(start, attempt, step)
        return Settlement(Fail(start.entry, attempt, step, lane, _report(start, attempt, peace)), due_of(step), None)

    def _tell_fenced(self, start: Start) -> None:
        self.tally.fenced += 1
        message = start.entry.message
        self.news.tell(logging.WARNING, "outcome_fenced", message=id_text(message.id), host=message.host)


def _report(start: Start, attempt: Attempt, peace: int) -> Report:
    ended = attempt.at + attempt.duration
    return Report(start.spell, attempt.at, ended, start.kind is Kind.PROBE, attempt.fault, peace)
