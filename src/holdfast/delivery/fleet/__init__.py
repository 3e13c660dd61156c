"""Delivery on a store that replicas share: what each part does otherwise than with a store of its own.

dispatcher.py  hears of others: circuits that they changed, replicas that came and went, a lease that ran out
reader.py      reads claim what they return, and what is claimed is kept or given back
roster.py      lanes are views of the store's, and hosts have this replica's part of their limits
settling.py    outcomes are reported, and judged by the store
upkeep.py      one replica sweeps for all
elsewhere.py   in a replica that delivers nothing
"""
