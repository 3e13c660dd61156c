"""What a pod is to its processes: users of their own, one loopback, a volume for each and a folder for a socket.

Another user may not reach the interpreter's files, so each process imports what it needs first and then becomes that
user, for good.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.harness import PATIENCE, READY, Gateway, settings

APP, SIDECAR, OPERATORS = 20_001, 20_002, 20_003
"""Users, each with a group of the same number, and the group that may use the control socket."""
POD_ADDRESS = "10.1.2.3"

BECOME = """
import os, sys
"codecs load themselves when first used".encode("idna")
user, groups = int(sys.argv[1]), [int(group) for group in sys.argv[2].split(",") if group]
os.setgroups(groups); os.setgid(user); os.setuid(user)
assert os.getuid() == os.geteuid() == user
"""
HOLDFAST = """
import tomllib
import holdfast.app, holdfast.operate.exposition
from holdfast.cli.run import run
{become}
sys.exit(run(sys.argv[3:]))
"""
POST = """
import http.client, json
{become}
ids = []
connection = http.client.HTTPConnection(sys.argv[3], timeout=30)
for target in sys.argv[4:]:
    connection.request("POST", "/" + target, b"{{}}")
    answer = connection.getresponse()
    assert answer.status == 202, answer.read()
    ids.append(json.loads(answer.read())["id"])
print(json.dumps(ids))
"""
KNOCK = """
import http.client, socket
{become}
door = socket.socket(socket.AF_UNIX)
try:
    door.connect(sys.argv[3])
    door.sendall(b"GET /v1/status HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n")
    print(door.recv(65536).split(b"\\r\\n")[0].decode())
except OSError as error:
    print(type(error).__name__)
"""


def as_user(script: str, user: int, groups: Sequence[int], *words: str) -> list[str]:
    numbers = ",".join(map(str, groups))
    return [sys.executable, "-c", script.format(become=BECOME), str(user), numbers, *words]


class Pod:
    """`volume` is the sidecar's alone, `run` has the socket; `log` is where its stderr goes."""

    def __init__(self, folder: Path) -> None:
        self._started: list[Gateway] = []
        self.volume, self.run, self.log = folder / "volume", folder / "run", folder / "sidecar.log"
        for path, group, mode in ((self.volume, SIDECAR, 0o700), (self.run, OPERATORS, 0o750)):
            path.mkdir()
            os.chown(path, SIDECAR, group)
            path.chmod(mode)

    @property
    def control(self) -> Path:
        return self.run / "control.sock"

    def start_sidecar(self, **keys: object) -> "Sidecar":
        given = {"listen__probe": "127.0.0.1:0", "listen__control": self.control, "listen__control_group": OPERATORS}
        with self.log.open("a") as stderr:
            process = subprocess.Popen(
                as_user(HOLDFAST, SIDECAR, [OPERATORS]),
                env=settings(self.volume / "store", **(given | keys)),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        found = READY.search(line)
        if found is None:
            process.kill()
            process.communicate(timeout=PATIENCE)
            raise AssertionError(f"no ready line but {line!r}; log: {self.log.read_text()}")
        sidecar = Sidecar(process, found[1], found[2], Path(found[3]), self.log, [line])
        self._started.append(sidecar)
        return sidecar

    def close(self) -> None:
        for sidecar in self._started:
            sidecar.close()

    def run_app(self, sidecar: Gateway, *targets: str) -> list[str]:
        """The app's whole life: it posts, and exits. The ids that it was given."""
        return list(json.loads(_output(as_user(POST, APP, [], sidecar.ingest, *targets))))

    def knock(self, user: int, groups: Sequence[int] = ()) -> str:
        """What somebody of the pod gets at the control socket."""
        return _output(as_user(KNOCK, user, groups, str(self.control))).strip()

    def may_read_volume(self, user: int) -> bool:
        script = "{become}\ntry:\n    os.listdir(sys.argv[3])\nexcept PermissionError:\n    print('no')\n"
        return _output(as_user(script, user, [], str(self.volume / "store"))) == ""


class Sidecar(Gateway):
    @property
    def probe_address(self) -> str:
        return self.out[0].rpartition("probe http://")[2].strip()

    def probe(self, path: str) -> int:
        """As a kubelet asks: by the pod's address, on a connection of its own."""
        connection = http.client.HTTPConnection(self.probe_address, timeout=PATIENCE)
        try:
            headers = {"host": f"{POD_ADDRESS}:8802", "user-agent": "kube-probe/1.31", "connection": "close"}
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def new_pod() -> Iterator[Pod]:
    """In a folder that every user can pass, which a test's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pod-"))
    folder.chmod(0o755)
    pod = Pod(folder)
    try:
        yield pod
    finally:
        pod.close()
        shutil.rmtree(folder)


def waiting_by_host(sidecar: Gateway) -> dict[str, int]:
    circuits: list[dict[str, Any]] = sidecar.call("GET", "/v1/circuits").json()["circuits"]
    return {each["host"]: each["waiting"] for each in circuits if each["waiting"]}
