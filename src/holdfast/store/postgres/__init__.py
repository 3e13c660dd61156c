"""The store that replicas share, in PostgreSQL. Imported only where `store.url` is set.

Modules that do the same job as one of the embedded store have its name.

schema       the tables, their versions, and how one becomes the next; claims: what version 1 left behind
connection   one connection and what its errors mean; statements: those of the hot path, without a thread
arrays       lists as the server's arrays
contact      the first word with a database, at a start
channel      operations on their way to the database, in groups
ownership    members, leases, the fence of every write, owners of shards, the fleet's time
membership   this replica's part: joins, renews, takes and hands over shards
shards       what an owner does with a whole shard
rows         how messages, places and lanes look in the tables; terms: what a transaction is made under
accepting    new messages; handing: those of a machine's own store
arrivals     messages that have arrived: how their owner hears of them, and finds them
changes      one transaction of delivery; outcomes: what the ends of attempts change
lanes        circuits, and when a lane needs attention next
shares       how much waits, is dead, and is held by whom
reads        what delivery reads: lanes and the agenda
requests     what operators ask of hosts that another replica owns
choosing     which messages an operator means
bulk         what changes many messages at once
stories      what operators are told
store        all of it behind the port
walking      how a whole store is gone through while a fleet works on it
export       out as JSON lines; restore: in again
fsck         what is wrong, and repairing it
offline      these behind the commands
"""
