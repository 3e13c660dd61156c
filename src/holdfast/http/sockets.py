"""Sockets to listen on."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import trio

from holdfast.http.message import LocalAddress

BACKLOG = 1024


async def open_tcp_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """One listener for each address that `host` names."""
    return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)


async def open_unix_listener(path: str | os.PathLike[str], mode: int, group: int | None = None) -> trio.SocketListener:
    """A listener on a Unix socket with this mode, for this group if one is given.

    A socket left over at `path` is replaced; one that somebody answers on is an OSError. It is its owner's alone from
    its first moment, and refuses connections until it listens, so group and mode are set between the two. The process's
    umask is left alone, other threads create files under it.
    """
    name = os.fspath(path)
    _remove_left_over(Path(name))
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with ExitStack() as undo:
        undo.callback(listening.close)
        # What bind makes takes its mode from the socket.
        os.fchmod(listening.fileno(), 0o600)
        await listening.bind(name)
        undo.callback(Path(name).unlink, missing_ok=True)
        _give_to(name, mode, group)
        listening.listen(BACKLOG)
        undo.pop_all()
    return trio.SocketListener(listening)


def _give_to(name: str, mode: int, group: int | None) -> None:
    """Set group and mode of the socket that was just made, and never of what another user put in its place."""
    node = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        made = os.fstat(node)
        if not stat.S_ISSOCK(made.st_mode) or made.st_uid != os.geteuid() or made.st_nlink != 1:
            raise PermissionError(errno.EPERM, "another user put something in its place")
        # The name of the descriptor: of a path of this kind nothing else can be set, and it leads nowhere else.
        held = f"/proc/self/fd/{node}"
        if group is not None:
            os.chown(held, -1, group)
        os.chmod(held, mode)  # noqa: PTH101
    finally:
        os.close(node)


def local_address(listener: trio.SocketListener) -> LocalAddress:
    name = listener.socket.getsockname()
    if isinstance(name, str | bytes):
        return os.fsdecode(name)
    return str(name[0]), int(name[1])


def _remove_left_over(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path} is in the way: it is not a socket")
    if _is_answered(path):
        raise OSError(errno.EADDRINUSE, "it is in use")
    path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    """Whether somebody listens on a socket; only a refused connection proves that nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A connection that would have to wait, because the other's backlog is full, is an answer too.
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
