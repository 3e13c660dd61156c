"""The back of the Celery peer."""

import os
import uuid

from celery import Celery
from delivering import deliver

app = Celery("webhooks", broker=f"redis://127.0.0.1:{os.environ['REDIS_PORT']}/0")
app.conf.update(
    task_ignore_result=True, task_acks_late=True, broker_pool_limit=64, broker_connection_retry_on_startup=True
)


@app.task(max_retries=11, default_retry_delay=85)
def webhook(id: str, type: str, body: str) -> None:
    deliver(id, type, body)


def enqueue(type: str, body: str) -> str:
    id = uuid.uuid4().hex
    webhook.delay(id, type, body)
    return id
