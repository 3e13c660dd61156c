"""The end of a container: the termination message counts waiting messages, and a second signal ends even pid 1."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast.process.log_messages import LONGEST_TERMINATION_LOG, write_termination_log
from tests.deploy.sandbox import may_unshare
from tests.support.harness import HOLDFAST, PATIENCE, PLAIN, READY, Receiver, settings, until
from tests.support.ports import refusing_port

WITH_ANOTHER_FILE = """
import sys
from pathlib import Path
import holdfast.process.log_messages
from holdfast.cli.main import main
holdfast.process.log_messages.TERMINATION_LOG = Path(sys.argv[1])
sys.exit(main(["run"]))
"""


@contextmanager
def started(words: list[str], store: Path, **keys: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A gateway and its ingest address."""
    with (store.parent / "log").open("a") as log:
        process = subprocess.Popen(
            words, env=settings(store, **keys), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    assert process.stdout is not None
    with process.stdout:
        try:
            ready = READY.search(process.stdout.readline())
            assert ready is not None, (store.parent / "log").read_text()
            yield process, ready[1]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE)


def last_words_of_a_run(file: Path, folder: Path) -> dict[str, object]:
    """One webhook to nobody, then a stop; the line of the log."""
    target = f"http://127.0.0.1:{refusing_port()}/x"
    with started([sys.executable, "-c", WITH_ANOTHER_FILE, str(file)], folder / "store") as (process, ingest):
        assert httpx.post(f"http://{ingest}/{target}", content=b"{}", **PLAIN).status_code == 202
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    (line,) = [each for each in lines if each["event"] == "exit"]
    return {name: value for name, value in line.items() if name not in ("time", "level")}


def test_the_termination_message_equals_the_log_line(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("of an earlier run, and longer than what is written now" * 20)
    told = last_words_of_a_run(file, tmp_path)
    assert told["waiting"] == 1
    assert json.loads(file.read_text()) == told


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert last_words_of_a_run(tmp_path / "termination-log", tmp_path)["waiting"] == 1
    assert not (tmp_path / "termination-log").exists()


def test_only_a_regular_file_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "termination-log"
    os.mkfifo(pipe)
    for file in (pipe, Path("/dev/null"), tmp_path):
        write_termination_log(file, {"waiting": 0})


def test_the_message_lists_as_many_hosts_as_fit(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    hosts = [(f"{number}.{'x' * 240}.example:443", 100 - number) for number in range(20)]
    write_termination_log(
        file, {"waiting": 1_000, "waiting_by_host": dict(hosts), "handed_over_by_host": {"here.example:443": 1}}
    )
    text = file.read_bytes()
    said = json.loads(text)
    kept = said["waiting_by_host"]
    assert len(text) <= LONGEST_TERMINATION_LOG < len(text) + 270
    assert list(kept.items()) == hosts[: len(kept)]
    assert (said["waiting"], said["handed_over_by_host"]) == (1_000, {"here.example:443": 1})


def test_a_second_signal_ends_the_first_process_of_a_container(tmp_path: Path, receiver: Receiver) -> None:
    if not may_unshare("--pid", "--fork"):
        pytest.skip("this user may not make a process namespace")
    entered, let_go = receiver.hang()
    words = ["unshare", "--pid", "--fork", "--kill-child", HOLDFAST, "run"]
    with started(words, tmp_path / "store", drain__timeout="10m") as (unshare, ingest):
        gateway = int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text())
        httpx.post(f"http://{ingest}/{receiver.url}/hang", content=b"{}", **PLAIN)
        assert entered.wait(PATIENCE)
        os.kill(gateway, signal.SIGTERM)
        until(lambda: '"draining"' in (tmp_path / "log").read_text())
        os.kill(gateway, signal.SIGTERM)
        assert unshare.wait(PATIENCE) == 128 + signal.SIGTERM
    let_go.set()
