"""Who may use the control socket: its mode, its group, the peer's credentials; two gateways on one path."""

import grp
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.hostile import rest, statuses
from tests.operate.scrape import run_in_vain, scrape
from tests.support.harness import PATIENCE, Gateway, running, until

STRANGER, OPERATOR, GROUP = 54_321, 54_322, 54_400
ASKING = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CURL = shutil.which("curl")

as_others = pytest.mark.skipif(
    os.geteuid() != 0 or CURL is None, reason="needs root, to become somebody else, and curl, for them to run"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own folders are for root only."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def own_group_name() -> str:
    return grp.getgrgid(os.getegid()).gr_name


def curl(path: Path, *before: str, **who: object) -> "subprocess.CompletedProcess[str]":
    """GET /v1/status as another user; the last line of the output is the status."""
    words = [*before, CURL, "--silent", "--show-error", "--write-out", "\n%{http_code}", "--unix-socket", str(path)]
    return subprocess.run(
        [*words, "http://holdfast/v1/status"],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/", env={}, **who,
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_without_a_group_only_the_owner_may_connect(gateway: Gateway) -> None:
    assert mode_of(gateway.control) == 0o600
    assert gateway.call("GET", "/v1/status").status_code == 200


def test_with_a_group_its_members_may_connect(tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    with running(tmp_path / "store", listen__control=control, listen__control_group=own_group_name()) as gateway:
        assert mode_of(control) == 0o660
        assert control.stat().st_gid == os.getegid()
        assert gateway.call("GET", "/v1/status").status_code == 200
        assert gateway.stop() == 0
        assert not control.exists()


@as_others
def test_the_sockets_mode_keeps_others_out(folder: Path) -> None:
    control = folder / "control.sock"
    with running(folder / "store", listen__control=control, listen__control_group=GROUP):
        done = curl(control, user=STRANGER, group=STRANGER, extra_groups=[])
        assert done.returncode != 0
        assert done.stdout.strip() == "000"


@as_others
def test_members_of_the_group_are_admitted(folder: Path) -> None:
    control = folder / "control.sock"
    with running(folder / "store", listen__control=control, listen__control_group=GROUP) as gateway:
        primary = curl(control, user=OPERATOR, group=GROUP, extra_groups=[])
        further = curl(control, user=OPERATOR, group=OPERATOR, extra_groups=[7, GROUP])
        for done in (primary, further):
            document, _, status = done.stdout.rpartition("\n")
            assert status == "200", done.stderr
            assert json.loads(document)["ready"]
        assert scrape(gateway).value("holdfast_control_refused_total") == 0


@as_others
@pytest.mark.parametrize("group", ["", str(GROUP)])
def test_others_are_refused_even_if_the_mode_admits_them(folder: Path, group: str) -> None:
    control = folder / "control.sock"
    with running(folder / "store", listen__control=control, listen__control_group=group) as gateway:
        control.chmod(0o666)
        done = curl(control, user=STRANGER, group=STRANGER, extra_groups=[7])
        document, _, status = done.stdout.rpartition("\n")
        assert status == "403"
        problem = json.loads(document)
        assert problem["status"] == 403
        assert str(STRANGER) in problem["detail"]
        assert scrape(gateway).value("holdfast_control_refused_total") == 1
        until(lambda: gateway.events()[-1]["event"] == "control_refused")
        assert gateway.events()[-1]["user"] == STRANGER
        assert gateway.call("GET", "/v1/status").status_code == 200, "root is still let in"


@as_others
def test_root_of_another_user_namespace_is_refused(folder: Path) -> None:
    control = folder / "control.sock"
    with running(folder / "store", listen__control=control):
        control.chmod(0o666)
        done = curl(control, "unshare", "--user", "--map-root-user", user=STRANGER, group=STRANGER, extra_groups=[])
        if not done.stdout:
            pytest.skip(f"no user namespaces here: {done.stderr}")
        assert done.stdout.endswith("\n403")


PASSING = f"""
import os, socket, sys
os.setgroups([]), os.setgid({STRANGER}), os.setuid({STRANGER})
connected = socket.socket(socket.AF_UNIX)
connected.connect(sys.argv[2])
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [connected.fileno()])
"""


@as_others
def test_the_user_who_connected_counts_even_if_another_uses_the_connection(folder: Path) -> None:
    control = folder / "control.sock"
    with running(folder / "store", listen__control=control):
        control.chmod(0o666)
        here, there = socket.socketpair()
        with here, there:
            words = [sys.executable, "-c", PASSING, str(there.fileno()), str(control)]
            subprocess.run(words, pass_fds=[there.fileno()], check=True, timeout=PATIENCE)
            _, (number,), _, _ = socket.recv_fds(here, 1, 1)
        with socket.socket(fileno=number) as passed:
            passed.sendall(ASKING)
            assert statuses(rest(passed)) == [403]


def test_descriptors_sent_with_a_request_are_closed(gateway: Gateway) -> None:
    open_now = Path(f"/proc/{gateway.process.pid}/fd")
    before = len(list(open_now.iterdir()))
    with socket.socket(socket.AF_UNIX) as operator, open(os.devnull) as nothing:  # noqa: PTH123
        operator.connect(str(gateway.control))
        socket.send_fds(operator, [ASKING], [nothing.fileno()] * 250)
        assert statuses(rest(operator)) == [200]
        assert len(list(open_now.iterdir())) < before + 250


def test_an_unknown_group_is_a_config_fault(tmp_path: Path) -> None:
    done = run_in_vain(
        tmp_path / "store", listen__control=tmp_path / "c.sock", listen__control_group="no-such-group-here"
    )
    assert done.returncode == 2
    assert "listen.control_group" in done.stderr
    assert "there is no such group" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_group_socket_must_not_be_in_the_store_folder(tmp_path: Path) -> None:
    done = run_in_vain(tmp_path / "store", listen__control_group=own_group_name())
    assert done.returncode == 2
    assert "listen.control_group" in done.stderr
    assert "listen.control elsewhere" in done.stderr


def test_a_socket_that_answers_is_not_replaced(tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    with running(tmp_path / "first", listen__control=control) as gateway:
        second = run_in_vain(tmp_path / "second", listen__control=control)
        assert second.returncode == 1
        (line,) = [line for line in second.stderr.splitlines() if not line.startswith("{")]
        assert line == f"holdfast: can't listen on {control}: another process answers there"
        assert gateway.call("GET", "/v1/status").json()["store"]["path"] == str(tmp_path / "first")


def test_a_socket_with_a_full_backlog_is_not_replaced(tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(control))
        busy.listen(0)
        waiting.connect(str(control))
        assert run_in_vain(tmp_path / "store", listen__control=control).returncode == 1
        assert control.exists()


def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(control))
    with running(tmp_path / "store", listen__control=control) as gateway:
        assert gateway.call("GET", "/v1/status").status_code == 200


def test_a_file_that_is_not_a_socket_is_not_replaced(tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    control.write_text("precious")
    assert run_in_vain(tmp_path / "store", listen__control=control).returncode == 1
    assert control.read_text() == "precious"
