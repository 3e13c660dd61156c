"""holdfast, a sidecar for outbound webhooks. Rooms follow the way of a webhook: in, down, out.

    ingest/     a request becomes a stored message or a refusal
    store/      durable state: one writer, an answer only after the fsync
    delivery/   which message next, one attempt, its outcome
    core/       what all of them decide by: pure, no clock, no I/O
    http/       HTTP/1.1 on trio, both sides; knows nothing of webhooks
    operate/    what operators look at and act through
    cli/        the `holdfast` command
    config/     a frozen Config, or every fault at once
    demo/       the whole gateway again, with a clock that jumps
    split/      ingest in a process of its own, when that is wanted
    app.py      puts it together: start and shutdown order
    opening.py  which store: the embedded one, or a database that replicas share
    intake.py   the ingest listener
    credentials.py, lifecycle.py, listening.py, descriptors.py, telling.py, notify.py, clock.py, chance.py, news.py
    log.py
    reloading.py, watching.py   another config while it runs

`core` imports the standard library only; `http` neither core nor store; `ingest`, `delivery` and `operate` never one
another. tests/test_rooms.py holds this.
"""

__version__ = "0.1.0"
