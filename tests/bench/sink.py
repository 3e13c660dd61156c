"""The receiver of the benchmarks: answers 200 at once and counts. nginx where it is installed, else an own one.

One socket serves every address of 127.0.0.0/8, so that one sink can be 100,000 hosts: it is bound to any address, and
to the loopback device. Where the kernel refuses that, it is bound to 127.0.0.1 alone, and `many_hosts` says so.

Run as a program with a listening descriptor, a file to count in, and which of them to fail, this is the own sink.
"""

import mmap
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.bench.processes import end, python

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
FAILURE = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
COUNTER = 8

CONFIG = """
daemon off; worker_processes 1; worker_rlimit_nofile {files}; pid {folder}/pid; error_log {folder}/error.log error;
events {{ worker_connections {files}; accept_mutex off; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 3600; client_max_body_size 8m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen {address};
    location / {{ return 200; }}
    location = /count {{ stub_status; }}
  }}
}}
"""
FILES = 16_384
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def loopback(number: int) -> str:
    """The address of one of many hosts. The first ones are left out: other things are likely to be there."""
    upper, lower = divmod(number, 250)
    return f"127.{1 + upper // 250}.{upper % 250}.{1 + lower}"


class Sink:
    """`count` is how many requests came so far. Only the own one fails, every so many of them; 0: none."""

    def __init__(self, nginx: str | None = NGINX, fail_every: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._socket, self.many_hosts = _listen()
        self.port = int(self._socket.getsockname()[1])
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}/hook"
        self.kind = "nginx" if nginx else "own"
        self._asked = 0
        self._process = self._start_nginx(nginx) if nginx else self._start_own(fail_every)
        self._wait()

    def _start_nginx(self, nginx: str) -> "subprocess.Popen[str]":
        """It takes over our socket, as it would its predecessor's."""
        folder = Path(self._folder.name)
        config = folder / "nginx.conf"
        address = f"*:{self.port}" if self.many_hosts else self.host
        config.write_text(CONFIG.format(folder=folder, address=address, files=FILES))
        descriptor = self._socket.fileno()
        command = [nginx, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]
        env = {"NGINX": f"{descriptor};", "PATH": "/usr/sbin:/usr/bin:/bin"}
        return subprocess.Popen(command, env=env, pass_fds=[descriptor], text=True)

    def _start_own(self, fail_every: int) -> "subprocess.Popen[str]":
        counter = Path(self._folder.name) / "count"
        counter.write_bytes(bytes(COUNTER))
        descriptor = self._socket.fileno()
        return python("tests.bench.sink", str(descriptor), str(counter), str(fail_every), pass_fds=[descriptor])

    def _wait(self) -> None:
        """The socket listens already, so a connection is answered as soon as the process is there."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(b"GET /count HTTP/1.1\r\nhost: sink\r\nconnection: close\r\n\r\n")
            assert connection.recv(4096), "the sink does not answer"
        self._asked += 1

    def count(self) -> int:
        if self.kind == "own":
            counted = Path(self._folder.name, "count").read_bytes()
            return int.from_bytes(counted, "little") - self._asked
        self._asked += 1
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(b"GET /count HTTP/1.0\r\nhost: sink\r\n\r\n")
            answer = connection.makefile("rb").read()
        found = re.search(rb"requests\s+\d+ \d+ (\d+)", answer)
        assert found is not None, answer
        return int(found[1]) - self._asked

    def close(self) -> None:
        end(self._process)
        self._socket.close()
        self._folder.cleanup()


def _listen() -> tuple[socket.socket, bool]:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        listening.bind(("0.0.0.0", 0))
        everywhere = True
    except PermissionError:
        listening.bind(("127.0.0.1", 0))
        everywhere = False
    listening.listen(4096)
    return listening, everywhere


# -- the own sink ------------------------------------------------------------------------------------------------------


def serve(listening: socket.socket, counter: mmap.mmap, fail_every: int) -> None:
    poll = select.epoll()
    poll.register(listening, select.EPOLLIN)
    connections: dict[int, tuple[socket.socket, bytearray]] = {}
    count = 0
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listening.fileno():
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection, bytearray()
                poll.register(connection, select.EPOLLIN)
                continue
            connection, got = connections[descriptor]
            data = b""
            with suppress(OSError):
                data = connection.recv(262_144)
            if not data:
                del connections[descriptor]
                connection.close()
                continue
            got += data
            while taken := _request(got):
                del got[:taken]
                count += 1
                counter[:COUNTER] = count.to_bytes(COUNTER, "little")
                with suppress(OSError):
                    connection.sendall(FAILURE if fail_every and count % fail_every == 0 else ANSWER)


def _request(got: bytearray) -> int:
    """How many bytes the first whole request in the buffer has; 0 if there is none."""
    head = got.find(b"\r\n\r\n")
    if head < 0:
        return 0
    length = LENGTH.search(got, 0, head)
    size = head + 4 + (int(length[1]) if length else 0)
    return size if len(got) >= size else 0


if __name__ == "__main__":
    with Path(sys.argv[2]).open("r+b") as file:
        serve(socket.socket(fileno=int(sys.argv[1])), mmap.mmap(file.fileno(), COUNTER), int(sys.argv[3]))
