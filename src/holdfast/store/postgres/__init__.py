"""The store that replicas share, in PostgreSQL. Imported only where `store.url` is set.

A module that does the same job as one of the embedded store has its name.

schema.py        the tables, and the steps from one version to the next
migration.py     makes the steps that a database lacks
connection.py    a connection, the shapes of transaction on it, and what its errors mean
client.py        one connection that is replaced when it breaks, with time limits
statements.py    prepared statements that run on the loop; lists as binary arrays
rows.py          how messages, places and lanes look in the tables; the terms of a transaction
ownership.py     members, leases, the fence of every write, owners of shards, the fleet's time
membership.py    this replica's part: joins, renews, takes and hands over shards
write_queue.py   operations on their way to the database, in groups
accept.py        new messages
transfer.py      messages that come from a machine's own store
arrivals.py      new messages that are in no queue yet: how their owner is notified, and finds them
changes.py       one transaction of delivery
outcomes.py      what the ends of attempts change
bulk.py          operations that change many messages
lanes.py         circuits, and when a lane needs attention next
shares.py        how much waits, is dead, and is held by whom
reads.py         what delivery reads: lanes and the agenda
queries.py       what operators ask: messages, dead letters, circuits, statistics
requests.py      what operators ask of hosts that another replica owns
store.py         all of it behind the port
export.py        the database as JSON lines
restore.py       JSON lines into a database
fsck.py          checks and repairs
offline.py       export, restore and fsck for the commands
"""
