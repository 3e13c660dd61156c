"""The back of the Dramatiq peer."""

import os
import uuid

import dramatiq
from delivering import deliver
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(host="127.0.0.1", port=int(os.environ["REDIS_PORT"])))


@dramatiq.actor(max_retries=11, min_backoff=84_800)
def webhook(id: str, type: str, body: str) -> None:
    deliver(id, type, body)


def enqueue(type: str, body: str) -> str:
    id = uuid.uuid4().hex
    webhook.send(id, type, body)
    return id
