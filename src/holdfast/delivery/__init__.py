"""Out to the receivers.

dispatcher.py  carries out what the board decides: starts attempts, reads lanes, sleeps until something is due
roster.py      the lanes and hosts in memory: from the store when needed, back to it when quiet
settling.py    what an outcome changes: circuit, limits, schedule, and the one operation that records it all
courier.py     one attempt from start to outcome
egress.py      which addresses may be dialled
upkeep.py      expiry, retention, forgetting
"""
