"""Out to the receivers.

dispatcher.py  carries out what the start order decides: starts attempts, reads lanes, sleeps until something is due
workers.py     the tasks that make attempts, one after another
lanes.py       the lanes and hosts in memory: from the store when needed, back to it when quiet
outcomes.py    what an outcome changes: circuit, limits, schedule, and the one operation that records it all
courier.py     one attempt from start to outcome
egress.py      which addresses may be dialled
resolver.py    names to addresses, one look-up per host at a time
dialer.py      how an address is reached: directly, or through the forward proxy
signing.py     Standard Webhooks: secrets and signatures
tls.py         whom receivers must be certified by, and what is shown to them
outgoing_handoff.py     what still waits at the end is handed to another holdfast
upkeep.py      expiry, retention, forgetting
"""
