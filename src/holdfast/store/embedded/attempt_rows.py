"""The failed attempts of a message in two rows: one for the attempts, one for the few answers that are kept.

A row for each attempt, with its answer, would leave a page behind for each: LMDB does not merge pages when a value
shrinks. Each of these rows fits one page, so a message's attempts take two pages at most.

Older versions wrote a row for each attempt, under its number. These rows are read, and replaced when the next attempt
is recorded.
"""

from typing import Any, NamedTuple

from holdfast.core import store_rules
from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Attempt, MessageId
from holdfast.store import records
from holdfast.store.embedded.tables import Table, Transaction, prefixed
from holdfast.store.validation import ANSWERS, answers_of, check_attempt, fields_of


class EncodedAttempt(NamedTuple):
    """An attempt ready to be recorded."""

    fields: list[Any]
    answer: bytes | None


def prepare(attempt: Attempt) -> EncodedAttempt:
    kept = store_rules.truncated_attempt(attempt)
    return EncodedAttempt(records.attempt_fields(kept), kept.answer)


def record(transaction: Transaction, id: MessageId, made: EncodedAttempt) -> None:
    """Add an attempt to those of its message, and drop the ones that are no longer kept."""
    latest = made.fields[0]
    before, answers = _stored(transaction, id) if latest > 1 else ([], {})
    kept = [fields for fields in before if fields[0] < latest and store_rules.is_kept(fields[0], latest)]
    _replace(transaction, id, records.encode_attempts([*kept, made.fields]), is_there=bool(before))
    kept_answers = {number: answer for number, answer in answers.items() if store_rules.keeps_answer(number, latest)}
    if made.answer is not None:
        kept_answers[latest] = made.answer
    if answers or kept_answers:
        value = records.encode_answers(kept_answers) if kept_answers else None
        _replace(transaction, id + ANSWERS, value, is_there=bool(answers))


def _replace(transaction: Transaction, key: bytes, value: bytes | None, *, is_there: bool) -> None:
    """Write a row anew. A value that outgrows its page leaves it nearly empty, and only a delete merges pages."""
    if is_there:
        transaction.delete(Table.ATTEMPTS, key)
    if value is not None:
        transaction.put(Table.ATTEMPTS, key, value)


def rows_of(id: MessageId, attempts: list[Attempt]) -> list[tuple[Table, bytes, bytes]]:
    """Returns the rows of attempts that come from elsewhere, already reduced to those that are kept."""
    answers = {attempt.number: attempt.answer for attempt in attempts if attempt.answer is not None}
    rows = []
    if attempts:
        rows.append((Table.ATTEMPTS, id, records.encode_attempts([records.attempt_fields(each) for each in attempts])))
    if answers:
        rows.append((Table.ATTEMPTS, id + ANSWERS, records.encode_answers(answers)))
    return rows


def attempts_of(transaction: Transaction, id: MessageId) -> list[Attempt]:
    """Returns all readable attempts, in order."""
    found: dict[int, Attempt] = {}
    answers: dict[int, bytes] = {}
    for key, value in prefixed(transaction, Table.ATTEMPTS, id):
        try:
            if key == id:
                found |= {fields[0]: records.attempt_of(fields) for fields in fields_of(value)}
            elif key == id + ANSWERS:
                answers = answers_of(value)
            else:
                number = records.number_of(key)
                attempt = records.decode_attempt(number, value)
                check_attempt(attempt)
                found.setdefault(number, attempt)
        except CorruptRecord as error:
            transaction.faults.append((Table.ATTEMPTS, key, str(error)))
    return [attempt._replace(answer=answers.get(number, attempt.answer)) for number, attempt in sorted(found.items())]


def _stored(transaction: Transaction, id: MessageId) -> tuple[list[list[Any]], dict[int, bytes]]:
    """Returns the fields of the recorded attempts, and their answers. Deletes rows of older versions."""
    stored = transaction.get(Table.ATTEMPTS, id)
    if stored is None:
        return _migrated(transaction, id)
    answers = transaction.get(Table.ATTEMPTS, id + ANSWERS)
    key = id
    try:
        fields = fields_of(stored)
        key = id + ANSWERS
        return fields, {} if answers is None else answers_of(answers)
    except CorruptRecord as error:
        transaction.faults.append((Table.ATTEMPTS, key, str(error)))
        return ([], {}) if key == id else (fields, {})


def _migrated(transaction: Transaction, id: MessageId) -> tuple[list[list[Any]], dict[int, bytes]]:
    older = store_rules.kept_attempts(attempts_of(transaction, id))
    for key in [key for key, _ in prefixed(transaction, Table.ATTEMPTS, id)]:
        transaction.delete(Table.ATTEMPTS, key)
    answers = {attempt.number: attempt.answer for attempt in older if attempt.answer is not None}
    return [records.attempt_fields(attempt) for attempt in older], answers
