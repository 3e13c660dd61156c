"""Looks into the tables of the embedded engines, and damages them."""

from typing import Any

from holdfast.core.message import MessageId
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded.tables import META_EPOCH, Engine, Table
from holdfast.store.records import numbered
from tests.contract import consistency

GARBAGE = b"\xc1garbage"


def dump(engine: Engine) -> dict[Table, list[tuple[bytes, bytes]]]:
    """Every table as it is on disk."""
    with engine.read() as transaction:
        return {table: list(transaction.scan(table)) for table in Table}


class Inside:
    """The part of a desk that knows the tables."""

    engine: Engine
    rules: StoreRules

    def undelivered(self) -> list[MessageId]:
        return [id for id, _ in dump(self.engine)[Table.MESSAGES]]

    def kept(self) -> dict[Any, Any]:
        """All that is known of messages, to be compared; lanes may be written at any time."""
        return {table: rows for table, rows in dump(self.engine).items() if table not in (Table.LANES, Table.META)}

    def traces(self, id: MessageId) -> list[str]:
        """The tables that know of a message; the last id of all is remembered in any case."""
        tables = dump(self.engine)
        del tables[Table.META]
        return [table.name for table, rows in tables.items() if any(id in key or id in value for key, value in rows)]

    def keys(self) -> int:
        """Idempotency keys, and whatever is kept for their sake."""
        tables = dump(self.engine)
        return len(tables[Table.KEYS]) + sum(key.startswith(META_EPOCH) for key, _ in tables[Table.META])

    def check(self) -> None:
        """Whatever can be told in two ways is told the same."""
        consistency.check(dump(self.engine), self.rules)

    def check_shares(self) -> None:
        consistency.check_shares(dump(self.engine))

    def spoil(self, table: Table, key: bytes, value: bytes = GARBAGE) -> None:
        with (writing := self.engine.write()) as transaction:
            transaction.put(table, key, value)
            writing.commit()

    def spoil_message(self, id: MessageId, value: bytes = GARBAGE) -> None:
        self.spoil(Table.MESSAGES, id, value)

    def spoil_lane(self, key: str) -> None:
        self.spoil(Table.LANES, key.encode())

    def spoil_attempt(self, id: MessageId, number: int) -> None:
        self.spoil(Table.ATTEMPTS, numbered(id, number))

    def cut_body(self, id: MessageId) -> None:
        """A part of a larger body is lost."""
        with (writing := self.engine.write()) as transaction:
            transaction.delete(Table.BODIES, numbered(id, 1))
            writing.commit()
