#!/usr/bin/env python3
"""A receiver to try holdfast with: prints what arrives and answers 200, until it is told to answer something else.

    python3 deploy/example/receiver.py [PORT [ADDRESS]]
    curl http://127.0.0.1:9000/answer/503       from now on it answers 503; a webhook to /hook?status=503 alone gets it
"""

import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Server(ThreadingHTTPServer):
    daemon_threads = True
    status = 200


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def receive(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked = parse_qs(urlsplit(self.path).query).get("status", [self.server.status])[0]
        print(f"{self.command} {self.path} {self.headers.get('webhook-id')} -> {asked}: {body!r}", flush=True)
        self.answer(int(asked))

    do_POST = do_PUT = do_PATCH = do_DELETE = receive

    def do_GET(self) -> None:
        status = self.path.removeprefix("/answer/")
        if not (status.isdecimal() and 200 <= int(status) <= 599):
            return self.answer(404, "GET /answer/503 makes it answer 503 from now on\n")
        self.server.status = int(status)
        return self.answer(200, f"from now on: {status}\n")

    def answer(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """The line above says it all."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    receiver = Server((address, port), Receiver)
    print(f"receiving on http://{address}:{receiver.server_address[1]}/", flush=True)
    with suppress(KeyboardInterrupt):
        receiver.serve_forever()
