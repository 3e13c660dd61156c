"""Ingest: turns a request into a stored message, or refuses it and says what to change.

handler.py           Ingest, the gate and handler of the server
access.py            who may send to ingest, decided by the head alone
target_forms.py      the four forms in which a request names its target
headers.py           which headers are forwarded; Holdfast-Delay and Idempotency-Key
incoming_handoff.py  a message that another holdfast hands over
refusals.py          every refusal as data
"""
