#!/usr/bin/env python3
"""A receiver to try holdfast with: prints what arrives and answers 200, or what `?status=` asks for.

python3 deploy/example/receiver.py [PORT [ADDRESS]]
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def receive(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked = parse_qs(urlsplit(self.path).query).get("status", ["200"])[0]
        print(f"{self.command} {self.path} {self.headers.get('webhook-id')} -> {asked}: {body!r}", flush=True)
        self.send_response(int(asked))
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_PUT = do_PATCH = do_DELETE = receive

    def log_message(self, format: str, *arguments: object) -> None:
        """The line above says it all."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    print(f"receiving on http://{address}:{port}/", flush=True)
    ThreadingHTTPServer((address, port), Receiver).serve_forever()
