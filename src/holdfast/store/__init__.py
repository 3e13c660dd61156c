"""Durable state: one writer, one transaction for what belongs together, an answer only after the fsync.

port.py     what the rest of holdfast may ask for, in the words of core
records.py  how things look on disk, byte by byte
tables.py   which tables there are, and what a transaction on them can do
writes.py   what each operation does to the tables
keys.py     idempotency keys and their epochs
handing.py  messages that go from one store to another; moving.py takes all of them to one that replicas share
spool.py    where new messages go while that one is away
attempts.py the failed attempts of a message
room.py     the watermark; shares.py what each host holds; reserve.py what is set aside for outcomes
migration.py  a store of an older version becomes one of this
reads.py    what is asked of the tables; looking.py how far one look goes, for every store
lmdb.py     the tables in LMDB; the only place that knows it; residence.py keeps its pages out of our memory;
            mapping.py what the volume has given of the file, file_systems.py which volumes will do
folder.py   the folder of a gateway: private, and one process's at a time
memory.py   the tables in memory, for tests in virtual time
ledger.py   the one writer: collects operations, commits a group, tells the waiters; writer_thread.py its thread,
            grouping.py how large a group is
asking.py   the ledger's other half: questions, each a short read transaction
offline.py  what is done to a stopped store; it maps the modules behind that
"""
