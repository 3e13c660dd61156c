"""The store of one process, in LMDB on a local disk.

ledger.py            Ledger, the Store of one process: collects operations and commits them in groups
writer_thread.py     the thread that commits, and how large a group may be
queries.py           the ledger's reads, and what operators ask: messages and dead letters
reads.py             what delivery reads: lanes, the agenda, statistics
writer.py            applies a group: accepting messages, outcomes of attempts
group.py             one group under way, and how it moves messages between indexes
bulk.py              operations on many messages: expiry, replay, removal, retention
attempt_rows.py      the failed attempts of a message
idempotency_keys.py  idempotency keys, by epochs
transfer.py          messages that go to another store or come from one
indexes.py           index entries of a message; summaries and moments of a lane
shares.py            how full the store is, how many bytes each host holds, and what is reserved for outcomes
tables.py            the tables, the interface of an engine, and walks over whole tables
lmdb.py              the tables in LMDB; no other module imports it
data_file.py         the data file on its volume, its map, and the map's pages in memory
folder.py            the store's folder: private, on a local file system, locked by one process
migration.py         brings a store of an older version up to date
spool.py             keeps new messages on this machine while a shared database is unreachable
"""
