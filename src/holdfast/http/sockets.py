"""TCP and Unix sockets to listen on."""

import errno
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import trio

from holdfast.http.request_response import LocalAddress

BACKLOG = 1024


async def open_tcp_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Opens one listener for each address of `host`."""
    return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)


async def open_unix_listener(path: str | os.PathLike[str], mode: int, group: int | None = None) -> trio.SocketListener:
    """Opens a Unix socket with this mode and, if given, this group.

    Replaces a stale socket at `path`. Raises OSError if a process answers there. At first only the owner may use the
    new socket, and it refuses connections until it listens. Group and mode are set between the two. The umask of the
    process stays as it is, because other threads create files under it.
    """
    name = os.fspath(path)
    _remove_stale(Path(name))
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with ExitStack() as undo:
        undo.callback(listening.close)
        # bind gives the file the mode of the socket.
        os.fchmod(listening.fileno(), 0o600)
        await listening.bind(name)
        undo.callback(Path(name).unlink, missing_ok=True)
        _set_access(name, mode, group)
        listening.listen(BACKLOG)
        undo.pop_all()
    return trio.SocketListener(listening)


def _set_access(name: str, mode: int, group: int | None) -> None:
    """Sets group and mode of the new socket, and never of a file that another user put in its place."""
    node = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        made = os.fstat(node)
        if not stat.S_ISSOCK(made.st_mode) or made.st_uid != os.geteuid() or made.st_nlink != 1:
            raise PermissionError(errno.EPERM, "another user put something in its place")
        # An O_PATH descriptor has no fchmod or fchown. Its path in /proc can lead nowhere else.
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


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path} exists and is not a socket")
    if _is_answered(path):
        raise OSError(errno.EADDRINUSE, "it is in use")
    path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    """Whether a process listens on the socket. Only a refused connection proves that none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Non-blocking: a full backlog would block, and proves that a process listens.
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
