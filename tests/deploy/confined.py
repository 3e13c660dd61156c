"""Runs a command as systemd would let it run: only these system calls, only sockets of these families, and no memory
that is both writable and executable. A script of its own, since it confines the process that it then becomes.

    python confined.py SYSCALL,... FAMILY,... COMMAND...
"""

import ctypes
import errno
import os
import socket
import sys

ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
EQUAL = 4
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1


class Comparison(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def confine(calls: list[str], families: list[str]) -> None:
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(REFUSE)))

    def allow(name: str, *comparisons: Comparison) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        given = (Comparison * max(1, len(comparisons)))(*comparisons)
        if number >= 0:
            done = library.seccomp_rule_add_array(context, ctypes.c_uint32(ALLOW), number, len(comparisons), given)
            assert done == 0, name

    for name in calls:
        if name != "socket":
            allow(name)
    for family in families:
        allow("socket", Comparison(0, EQUAL, getattr(socket, family), 0))
    # The last thing before the filter, which may not let it through; kernels before 6.3 don't know it.
    ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0)
    assert library.seccomp_load(context) == 0


if __name__ == "__main__":
    allowed, kinds, *command = sys.argv[1:]
    confine(allowed.split(","), kinds.split(","))
    os.execv(command[0], command)
