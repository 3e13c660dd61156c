"""What commands do to a stopped store.

offline_store.py  opens a store for the commands
handoff.py        moves its messages to a database
fsck.py           finds what is wrong
row_checks.py     checks one row of any table
repair.py         fixes what fsck finds
export_import.py  a store as JSON lines, and back
"""
