"""holdfast, a sidecar for outbound webhooks. The packages follow the way of a webhook: in, down, out.

    ingest/     a request becomes a stored message or a refusal
    store/      durable state: embedded/ in LMDB, postgres/ shared by replicas, offline/ for stopped stores
    delivery/   which message next, one attempt, its outcome
    core/       the rules that all of them follow: pure, no clock, no randomness, no I/O
    http/       HTTP/1.1 on trio, server and client; knows nothing of webhooks
    operate/    what operators look at and act through
    config/     the config file, environment and flags as one frozen Config
    process/    what a running process consists of: gateway, stores, listeners, log, reload
    split/      ingest in a process of its own
    cli/        the `holdfast` command
    demo/       `holdfast demo`: a real gateway with a fast clock
    app.py      starts and stops everything in order
    clock.py    the clocks
    events.py   events for live listeners and the log

`core` imports the standard library only. `http` imports neither `core` nor `store`. `ingest`, `delivery` and `operate`
never import one another. tests/test_imports.py checks this.
"""

__version__ = "0.1.0"
