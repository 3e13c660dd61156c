"""One delivery over kept-alive connections, for both Python peers."""

import os

import urllib3

TARGET = os.environ["TARGET"]
pool = urllib3.connection_from_url(TARGET, maxsize=64, block=True, retries=False, timeout=30)
path = urllib3.util.parse_url(TARGET).path


def deliver(id: str, type: str, body: str) -> None:
    headers = {"content-type": type, "webhook-id": id}
    answer = pool.urlopen("POST", path, body=body.encode(), headers=headers)
    if not 200 <= answer.status < 300:
        raise RuntimeError(f"answered {answer.status}")
