"""Unix sockets to listen on: who may connect, and files that are in the way."""

import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from holdfast.http.request_response import Request, Response
from holdfast.http.server import Server
from holdfast.http.sockets import open_unix_listener


async def show_local_address(request: Request) -> Response:
    return Response(200, [], str(request.local).encode())


async def test_a_unix_listener_replaces_a_stale_socket(tmp_path, limits):
    path = tmp_path / "control.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(os.fspath(path))
    stale.close()
    old_mask = os.umask(0)
    try:
        listener = await open_unix_listener(path, 0o600, group=os.getgid())
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server = Server(show_local_address, limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: server.serve([listener], task_status=task_status))
        async with await trio.open_unix_socket(os.fspath(path)) as stream:
            await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while piece := await stream.receive_some(1000):
                answer += piece
        assert answer.partition(b"\r\n\r\n")[2].decode() == str(path)
        server.stop()


async def test_a_unix_listener_does_not_replace_a_file(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FileExistsError):
        await open_unix_listener(path, 0o600)
    assert path.read_text() == "data"


async def test_nobody_can_connect_before_the_mode_is_set(tmp_path, monkeypatch):
    """At the moment of chmod the socket exists but refuses connections."""
    path = tmp_path / "control.sock"
    refused: list[bool] = []
    change_mode = os.chmod

    def watching(name, mode):
        with socket.socket(socket.AF_UNIX) as probe:
            refused.append(probe.connect_ex(name) != 0)
        change_mode(name, mode)

    monkeypatch.setattr("holdfast.http.sockets.os.chmod", watching)
    listener = await open_unix_listener(path, 0o600)
    await listener.aclose()
    assert refused == [True]


def unanswered(path):
    """Leaves a socket file without a listener."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))


@pytest.fixture
def after_bind(monkeypatch):
    """Runs a function when the socket has its path, but not yet its group and mode."""
    acts = []
    open_file = os.open

    def watching(name, flags, *rest, **more):
        if flags & os.O_PATH:
            acts.pop()(name)
        return open_file(name, flags, *rest, **more)

    monkeypatch.setattr("holdfast.http.sockets.os.open", watching)
    old_mask = os.umask(0)
    yield acts.append
    os.umask(old_mask)
    assert acts == []


async def test_only_the_owner_may_use_a_new_unix_socket(tmp_path, after_bind):
    modes: list[int] = []
    after_bind(lambda name: modes.append(os.lstat(name).st_mode))
    listener = await open_unix_listener(tmp_path / "control.sock", 0o660, group=os.getgid())
    await listener.aclose()
    assert [stat.S_IMODE(mode) for mode in modes] == [0o600]
    assert stat.S_IMODE((tmp_path / "control.sock").stat().st_mode) == 0o660


@pytest.mark.parametrize("how", ["symlink", "link", "strangers"])
async def test_a_file_that_another_user_put_in_its_place_is_left_alone(tmp_path, after_bind, how):
    path, precious = tmp_path / "control.sock", tmp_path / "precious"
    unanswered(precious)
    precious.chmod(0o600)

    def swap(name):
        Path(name).unlink()
        if how == "symlink":
            Path(name).symlink_to(precious)
        elif how == "link":
            os.link(precious, name)
        elif os.geteuid() == 0:
            unanswered(name)
            os.chown(name, 54_321, 54_321)
        else:
            pytest.skip("needs root, to give a socket to somebody else")

    after_bind(swap)
    with pytest.raises(PermissionError, match="another user"):
        await open_unix_listener(path, 0o666, group=os.getgid())
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600


async def test_the_address_of_a_unix_socket_is_its_path(tmp_path):
    path = tmp_path / ("x" * (106 - len(os.fspath(tmp_path))))
    assert len(os.fspath(path)) == 107
    listener = await open_unix_listener(path, 0o600)
    assert listener.socket.getsockname() == os.fspath(path)
    await listener.aclose()
