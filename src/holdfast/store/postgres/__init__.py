"""The store that replicas share, in PostgreSQL. Imported only where `store.url` is set.

schema       the tables, their versions, and how one becomes the next
connection   one connection and what its errors mean
arrays       lists as the server's arrays
contact      the first word with a database, at a start
rows         how messages, places and lanes look in the tables
counting     how much waits, is dead, and is held by whom
waking       when a lane needs attention next
accepting    new messages; taking: those of a machine's own store
judging      what outcomes do to circuits and hosts
outcomes     what the ends of attempts change
claiming     which messages this replica takes
choosing     which messages an operator means
sweeping     what changes many messages at once
showing      what operators are told
presence     leases, and what replicas tell one another
store        all of it behind the port
walking      how a whole store is gone through while a fleet works on it
exporting    out as JSON lines; importing: in again
checking     what is wrong, and mending it
maintenance  these behind the commands
"""
