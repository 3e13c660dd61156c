"""Opens the data file that a power cut left, and reads its messages."""

import shutil
from collections import deque
from pathlib import Path
from typing import NamedTuple

import lmdb

from holdfast.config import load
from holdfast.core.message import id_text
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table
from holdfast.store.offline.fsck import check
from holdfast.store.records import decode_key
from tests.support.harness import settings

Rows = list[list[tuple[bytes, bytes]]]


class Held(NamedTuple):
    """What a store holds: the messages in it, and of these the ones that an idempotency key stands for."""

    messages: frozenset[str]
    keyed: frozenset[str]


class Judge:
    """Opens images. Every row of every image is read; what a store with these rows is worth is found out once."""

    def __init__(self, folder: Path, **keys: object) -> None:
        """The keys are the config of the gateway that wrote."""
        self.folder = folder / "image"
        self.contents = 0
        """How many different ones were met."""
        self._known: deque[tuple[Rows, Held]] = deque(maxlen=3)
        self._copy = folder / "copy"
        config = load(None, settings(self._copy, **keys))
        self._rules = config.store_rules(0)
        self._max_size = config.store.max_size

    def take(self, store: Path) -> Path:
        """The first image: this store as it is now."""
        self.folder.mkdir()
        return Path(shutil.copy(store / "data.mdb", self.folder))

    def read(self) -> Held:
        rows = self._rows()
        # One commit's images read as it left the store or as the one before did; older contents do not come back.
        for known, held in self._known:
            if known == rows:
                return held
        self._check_whole()
        keys = (decode_key(value)[0] for _, value in rows[Table.KEYS])
        messages = (key for table in (Table.MESSAGES, Table.DELIVERED) for key, _ in rows[table])
        held = Held(frozenset(map(id_text, messages)), frozenset(map(id_text, keys)))
        self._known.appendleft((rows, held))
        self.contents += 1
        return held

    def _rows(self) -> Rows:
        # Not LmdbEngine, which takes several times as long to open; each new content goes through it below.
        with lmdb.open(str(self.folder), readonly=True, lock=False, max_dbs=len(Table), lib_version=0) as environment:
            with environment.begin() as reading:
                names = [table.name.lower().encode() for table in Table]
                tables = [environment.open_db(name, txn=reading, create=False) for name in names]
                return [list(reading.cursor(table).iternext()) for table in tables]

    def _check_whole(self) -> None:
        """Nothing contradicts anything, and the store can be written to again."""
        self._copy.mkdir(exist_ok=True)
        shutil.copy(self.folder / "data.mdb", self._copy)
        engine = LmdbEngine(self._copy, self._max_size)
        try:
            assert list(check(engine, self._rules)) == []
            writing = engine.write()
            with writing as transaction:
                transaction.put(Table.META, b"again", b"")
                writing.commit()
        finally:
            engine.close()
