"""What holdfast decides: pure functions and plain state, no clock, no randomness, no I/O.

message.py   what is carried, and where it may stand
place.py     where a message stands after each thing that happens to it
room.py      how much a store takes, and from whom
schedule.py  when a failed message is tried again, and when it is dead
outcome.py   what an answer or an error means, and whose failure it is
circuit.py   one host's enabled, disabled, frozen
lane.py      one circuit's queue and one host's limits, as they stand in memory
board.py     which message starts next: lanes taking turns under two budgets
ownership.py which replica owns a host, and which replicas are dead
addresses.py what an IP address is: the table of all that is not public
errors.py    the error tree
"""
