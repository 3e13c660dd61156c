"""Ingest in a process of its own (`process.split`), for a machine with two cores to spare.

The gateway's process stays the one that it is without this: it owns the store, delivery and the operators' listeners.
The ingest process answers clients and has nothing else: a message that it accepts travels over a private socketpair,
many in a frame, and is answered once the gateway's process has it on disk.

frames.py   what the two say to each other, byte by byte
channel.py  one end of the socketpair: what gathers during one round of the loop travels together
distant.py  the store as the ingest process sees it
child.py    the ingest process
parent.py   the ingest process as the gateway sees it: started, told of settings, answered, ended
"""
