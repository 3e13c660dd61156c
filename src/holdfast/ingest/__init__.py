"""Ingest: a request becomes a stored message, or a refusal that says what to change.

handler.py      Ingest, which joins the rest: the server's gate and handler
doorkeeper.py   who may speak here at all, decided on the head alone
sidecar.py      which names and ports are this sidecar
target.py       the grammar of targets, and the circuit that one belongs to
naming.py       the four ways to name a target
hygiene.py      which headers travel
idempotency.py  Idempotency-Key
handoff.py      what another holdfast hands over
delay.py        Holdfast-Delay
answer.py       the answer to an accepted message, prepared but for its id
refusals.py     every refusal as data
"""

from holdfast.ingest.doorkeeper import read_token
from holdfast.ingest.handler import Clock, Ingest

__all__ = ["Clock", "Ingest", "read_token"]
