"""Durable state: one writer, one transaction for each group of operations, an answer only after the fsync.

port.py           the contract of a store: operations, results, views and the listener
batching.py       how large commit groups and pages of reads are, for both engines
waiter.py         the task that waits for an operation
records.py        records and keys as bytes
validation.py     checks records strictly, beyond what decoding needs
transfer.py       messages that leave for another store, page by page
export_format.py  an export as JSON lines: what each line looks like
maintenance.py    check, repair, export and import: what both engines share
private_files.py  private files that are whole on disk before they appear
embedded/         a store in LMDB, for one process on one machine
postgres/         a store in PostgreSQL that replicas share
offline/          what commands do to a stopped embedded store
"""
