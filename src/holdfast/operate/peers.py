"""Who may use the control socket, by what the kernel says of the process at the other end.

The socket's mode says the same, and is checked first, by the kernel. This holds also when somebody widened the mode, or
when a socket was handed on.
"""

import os
import pwd
import socket
import struct
from array import array
from collections.abc import Callable

_CREDENTIALS = struct.Struct("iII")
_SO_PEERGROUPS = 59
"""Linux' supplementary groups of a peer; Python has no name for it."""
_MOST = 1024
"""Bytes that Python's getsockopt takes: 256 groups."""


class Admission:
    """Lets in root, the gateway's own user, and members of `group` if there is one. `refused` hears who else came."""

    def __init__(self, group: int | None, refused: Callable[[int], None]) -> None:
        self._group = group
        self._refused = refused
        self._users = (0, os.geteuid())

    def __call__(self, sock: socket.socket) -> str | None:
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, own_group = _CREDENTIALS.unpack(data)
        if user in self._users:
            return None
        if self._group is not None and self._group in (own_group, *_further_groups(sock, user, own_group)):
            return None
        self._refused(user)
        allowed = "its own user and root" if self._group is None else "its own user, root and listen.control_group"
        return f"user {user} may not use this socket: it is for {allowed}"


def _further_groups(sock: socket.socket, user: int, own_group: int) -> list[int]:
    """Those that the process has; where the kernel can't tell, those that its user has."""
    try:
        return list(array("I", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST)))
    except OSError:
        pass
    try:
        return os.getgrouplist(pwd.getpwuid(user).pw_name, own_group)
    except KeyError:
        return []
