"""The store that replicas share, in PostgreSQL. Imported only where `store.url` is set.

A module that does the same job as one of the embedded store has its name.

store.py             PostgresStore: the parts below behind the port, and the table of its connections
state.py             what the parts share: rules, room, whether the database is reachable, the listener

schema.py            the tables, and the steps from one version to the next
migration.py         makes the steps that a database lacks
transactions.py      a connection, the shapes of transaction on it, and what its errors mean
client.py            one connection that is replaced when it breaks, with time limits
statements.py        prepared statements that run on the loop; lists as binary arrays
rows.py              messages, places and lanes in the tables; the terms of a transaction

ownership_tables.py  statements on members, leases, the fence, owners of shards and the fleet's time
membership.py        Member: joins, renews its lease, listens
shards.py            OwnedShards: takes and hands over shards

write_queue.py       WriteQueue: operations, written in groups
accept.py            Acceptor: new messages
admission.py         which new messages are stored: idempotency keys and room
transfer.py          messages that come from a machine's own store
arrivals.py          statements on new messages that are in no queue yet, and notifications of them
arrival_feed.py      ArrivalFeed: brings them to delivery in the order of commits
changes.py           DeliveryWriter: one fenced transaction for each group of changes
outcomes.py          records the ends of attempts
bulk.py              operations that change many messages
lane_rows.py         circuits, and when a lane needs attention next
shares.py            counters of waiting and dead messages and their bytes
reads.py             DeliveryReader: lanes, the agenda
queries.py           what operators ask: messages, dead letters, circuits, statistics
requests.py          what operators ask of hosts that another replica owns

fsck.py              checks and repairs
offline.py           the commands on a database: check, repair, export and import
"""
