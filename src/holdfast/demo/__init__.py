"""`holdfast demo`: the real gateway on a real store and real sockets, two receivers that fail, and a clock run fast.

clock.py       time that jumps over the waits, and never over a moment that somebody waits for
receiver.py    a receiver with moods
sender.py      the app: sends webhooks to ingest
transports.py  the client side of app and gateway
gateway.py     the gateway put together around that clock
promise.py     what holdfast is held to
stage.py       what the story is told with: waiting for events, saying lines
wording.py     numbers as they are told
story.py       the three acts
play.py        a run from the temporary folder to its removal
"""
