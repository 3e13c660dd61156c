"""Starts `holdfast` processes by fork from a process that has imported all of it: an eighth of the CPU of an exec.

Each process has its own environment, standard streams and pid. `make test-long` executes `holdfast` instead, and so do
tests of memory, process limits, preloaded libraries, the umask and import times.

Run as a program, this module is the process that forks.
"""

import atexit
import gc
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from select import POLLIN, poll
from typing import IO

from tests.support.repetitions import LONG

ROOT = Path(__file__).parents[2]
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
EXECUTABLE = HOLDFAST if LONG else None
"""The program to execute; None to fork."""
_LARGEST_REQUEST = 1 << 20
_PATIENCE = 30.0


class Forked:
    """The part of `subprocess.Popen` that tests need, for a process that is not their own child."""

    def __init__(self, pid: int, status: int, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status
        """The fork server writes the exit status here."""
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, seconds: float | None) -> int | None:
        readable = poll()
        readable.register(self._status, POLLIN)
        if self.returncode is None and readable.poll(None if seconds is None else seconds * 1000):
            with self._lock:  # one thread may wait while another one kills
                if self.returncode is None:
                    self.returncode = int(os.read(self._status, 100))
        return self.returncode

    def __del__(self) -> None:
        os.close(self._status)


class _ForkServer:
    """The client side: one fork server for each pytest worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, words: list[str], env: Mapping[str, str], streams: list[int], cwd: Path | None) -> tuple[int, int]:
        """Returns the pid, and a descriptor for reading the exit status."""
        status, told = os.pipe()
        with self._lock:
            if self._process is None:
                self._start()
            request = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd or Path.cwd())})
            socket.send_fds(self._socket, [request.encode()], [*streams, told])
            os.close(told)
            return int(self._socket.recv(100)), status

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT
            )
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.wait()


_fork_server = _ForkServer()


@contextmanager
def executing(executable: str = HOLDFAST) -> Iterator[None]:
    """Processes started inside are executed, not forked."""
    global EXECUTABLE
    before, EXECUTABLE = EXECUTABLE, executable
    try:
        yield
    finally:
        EXECUTABLE = before


def start(
    words: list[str],
    env: Mapping[str, str],
    stdout: int | IO[str],
    stderr: int | IO[str],
    stdin: IO[str] | None = None,
    cwd: Path | None = None,
) -> "subprocess.Popen[str] | Forked":
    """Starts `holdfast WORDS`. `stdout` and `stderr` are files, or PIPE for `stdout`."""
    executable = HOLDFAST if "LD_PRELOAD" in env else EXECUTABLE
    if executable is not None:
        given = subprocess.DEVNULL if stdin is None else stdin
        return subprocess.Popen(
            [executable, *words], env=env, stdin=given, stdout=stdout, stderr=stderr, cwd=cwd, text=True
        )
    with open(os.devnull) as nothing:  # noqa: PTH123
        streams = [(stdin or nothing).fileno(), _number(stdout), _number(stderr)]
        if stdout != subprocess.PIPE:
            return Forked(*_fork_server.fork(words, env, streams, cwd), None)
        reading, writing = os.pipe()
        streams[1] = writing
        try:
            return Forked(*_fork_server.fork(words, env, streams, cwd), os.fdopen(reading))
        finally:
            os.close(writing)


def _number(stream: int | IO[str]) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def run(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, input: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Runs `holdfast WORDS` to its end and captures its output."""
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
    ):
        stdin.write(input)
        stdin.seek(0)
        process = start([*words], os.environ if env is None else env, stdout, stderr, stdin, cwd)
        try:
            process.wait(_PATIENCE)
        except BaseException:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(words, process.returncode, stdout.read(), stderr.read())


# -- the fork server itself ------------------------------------------------------------------------------------------


def _import_all() -> None:
    import holdfast

    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        import_module(module.name)
    # Without garbage collection of these objects the forked processes keep sharing their pages.
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> list[str]:
    """Returns the command line in each forked process. Exits when the client closes the socket."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    waiting = poll()
    waiting.register(requests, POLLIN)
    waiting.register(woken, POLLIN)
    running: dict[int, int] = {}
    while True:
        ready = {number for number, _ in waiting.poll()}
        if woken.fileno() in ready:
            woken.recv(4096)
            _report(running)
        if requests.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
            if not message:
                sys.exit()
            *streams, status = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (requests, woken, wake):
                    each.close()
                for number in (status, *running.values()):
                    os.close(number)
                return _become(json.loads(message), streams)
            running[pid] = status
            for number in streams:
                os.close(number)
            requests.send(str(pid).encode())


def _report(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = running.pop(pid)
        with suppress(BrokenPipeError):  # the test does not wait for it
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(told)


def _become(request: dict[str, object], streams: list[int]) -> list[str]:
    """Sets everything that an exec would set."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = ["holdfast", *request["words"]]
    return sys.argv


def _exit_fast(status: object) -> None:
    """Ends the process without the interpreter's finalization, which takes 30 ms of CPU: all modules are imported here.

    Returns if only the interpreter can end it as the executable would.
    """
    if status is None or isinstance(status, int):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    _import_all()
    from holdfast.cli.main import main

    _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        status: object = main()
    except SystemExit as end:
        status = end.code
    _exit_fast(status)
    sys.exit(status)  # type: ignore[arg-type]
