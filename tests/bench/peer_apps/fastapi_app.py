"""The front of both Python peers: a webhook is acknowledged once Redis has it on disk.

Enqueuing blocks, so it runs on threads: while one waits for Redis' fsync, others can share it.
"""

import os
from importlib import import_module

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

enqueue = import_module(os.environ["TASKS"]).enqueue
app = FastAPI()


@app.post("/{path:path}", status_code=202)
async def accept(request: Request) -> dict[str, str]:
    body = (await request.body()).decode()
    return {"id": await run_in_threadpool(enqueue, request.headers.get("content-type", ""), body)}
