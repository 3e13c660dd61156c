"""Decisions: pure functions and plain state. Standard library only; no clock, no randomness, no I/O, no logging.

message.py         messages, their places and attempts, ids, times as text
target.py          the grammar of target URLs, and which circuit a target belongs to
schedule.py        when a failed message is tried again, when it is dead, and its place after each event
outcome.py         the meaning of an answer or an error: delivered or failed, and whose fault
circuit.py         one host's circuit: enabled, disabled, frozen
lane.py            the queue of one circuit and the limits of one host, as they are in memory
lane_times.py      when a lane needs attention by time: probes, expiry, forgetting
start_order.py     which message starts next: hosts take turns under two budgets
budget.py          how attempts and memory are shared among hosts
store_rules.py     the rules of every store: room, and how many attempts are kept
ownership.py       which replica owns a host, and which replicas are dead
handoff_header.py  the header that hands a message over to another holdfast
idempotency.py     the digests that requests are recognised by
addresses.py       which IP addresses are not public
redaction.py       removes secrets from the answers of receivers
explanation.py     why a message is where it is, as a sentence
counters.py        totals, histograms and rates of one run
errors.py          the error tree
"""
