#!/usr/bin/env python3
"""An app to try holdfast with: sends a webhook every few seconds to $WEBHOOK_URL, and prints what it was answered.

WEBHOOK_URL=http://127.0.0.1:8800/http://127.0.0.1:9000/hook python3 deploy/example/app.py [SECONDS]
"""

import json
import os
import sys
import time
from itertools import count
from urllib.request import Request, urlopen


def send(url: str, number: int) -> None:
    body = json.dumps({"order": number}).encode()
    request = Request(url, data=body, headers={"content-type": "application/json"})
    try:
        with urlopen(request, timeout=10) as answer:
            print(f"order {number}: {answer.status} {answer.headers['Holdfast-Message-Id']}", flush=True)
    except OSError as error:
        print(f"order {number}: {error}", flush=True)


if __name__ == "__main__":
    pause = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    for number in count(1):
        send(os.environ["WEBHOOK_URL"], number)
        time.sleep(pause)
