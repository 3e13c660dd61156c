"""Opens every address to listen on, before anything else starts. An address that is taken gets a clear error."""

import errno
import grp
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import trio

from holdfast.config import Address, ConfigError, ConfigFault
from holdfast.config import Listen as Wanted
from holdfast.core.ownership import Role
from holdfast.http.sockets import open_tcp_listeners, open_unix_listener

HIGHEST_GROUP = (1 << 32) - 2


class CannotListen(Exception):
    """holdfast can't listen on an address."""


class Listeners(NamedTuple):
    """`tcp` holds the listeners by name: status, ingest, probe. `bound` holds their addresses with the actual ports."""

    tcp: Mapping[str, list[trio.SocketListener]]
    bound: Mapping[str, Address]
    control: trio.SocketListener

    @property
    def names(self) -> set[tuple[str, int]]:
        """Host and port of each listener, as the kernel reports them."""
        sockets = (listener.socket for listeners in self.tcp.values() for listener in listeners)
        return {sock.getsockname()[:2] for sock in sockets}


async def open_listeners(wanted: Wanted, group: int | None, role: Role) -> Listeners:
    named = {"ingest": wanted.ingest if role.ingests else None, "status": wanted.status, "probe": wanted.probe}
    addresses = {name: address for name, address in named.items() if address is not None}
    tcp = {name: await _listen(address) for name, address in addresses.items()}
    bound = {name: Address(address.host, _port(tcp[name])) for name, address in addresses.items()}
    return Listeners(tcp, bound, await _listen_control(wanted.control, group))


def group_number(name: str | None) -> int | None:
    """The group of `listen.control_group`, by its name or its number."""
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        # In a container many groups have a number only.
        if name.isdecimal() and int(name) <= HIGHEST_GROUP:
            return int(name)
    problem = "there is no such group on this machine"
    raise ConfigError([ConfigFault("listen.control_group", problem, "the name or number of a group")])


async def _listen(address: Address) -> list[trio.SocketListener]:
    try:
        return await open_tcp_listeners(address.host, address.port)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else str(error)
        raise CannotListen(f"can't listen on {address}: {reason}") from error


def _port(listeners: list[trio.SocketListener]) -> int:
    return int(listeners[0].socket.getsockname()[1])


async def _listen_control(path: Path, group: int | None) -> trio.SocketListener:
    try:
        return await open_unix_listener(path, 0o600 if group is None else 0o660, group)
    except OSError as error:
        reason = "another process answers there" if error.errno == errno.EADDRINUSE else str(error)
        raise CannotListen(f"can't listen on {path}: {reason}") from error
