"""Ingest in a process of its own (`process.split`), for a machine with two cores to spare.

The gateway's process still owns the store, delivery and the operators' listeners. The ingest process only answers
clients. It sends each message over a private socketpair, many in a frame, and responds once the gateway's process has
the message on disk.

channel.py  the frames between the two processes, and one end of the socketpair
child.py    the ingest process, and the store as it sees it
parent.py   the ingest process as the gateway sees it
"""
