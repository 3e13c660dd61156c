"""`holdfast demo`: the real gateway with a real store and real sockets, two receivers that fail, and a fast clock.

fast_clock.py    a clock that jumps over waiting times, but never past a moment that somebody waits for
narrator.py      waits for events of the gateway and prints lines; checks what holdfast promises
endpoints.py     the receivers, the app that sends, and their HTTP client
demo_gateway.py  the gateway with that clock
story.py         the three chapters
runner.py        one run, from the temporary directory to its removal
"""
