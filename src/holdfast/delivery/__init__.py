"""Delivery of messages to receivers.

agenda.py            when to look at which lane: timers, and the store's agenda
attempts.py          starts attempts in workers, and carries out what their outcomes change
courier.py           one attempt: writes the request and turns the result into an outcome
dialer.py            opens connections, directly or through the forward proxy
dispatcher.py        the loop that looks at lanes when they need attention; operators' access to lanes
egress.py            the egress rules: which addresses may be dialled
lane_queues.py       the heads of the lanes' queues in memory: reads them, and puts messages back to disk
lane_cache.py        the lanes and hosts in memory
outcome_handler.py   decides what an outcome changes: circuit, limits, schedule, and the operation that records it
outgoing_handoff.py  hands waiting messages to another holdfast at the end of a drain
resolver.py          resolves host names in bounded threads
service.py           delivery as a whole, built from a config
signing.py           Standard Webhooks: secrets and signatures
tls.py               TLS contexts and client certificates
upkeep.py            expiry, retention, eviction and forgetting
"""
