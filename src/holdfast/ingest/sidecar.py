"""Which names and ports are this sidecar: what `Host` may say, and when a proxied target is ourselves."""

from collections.abc import Iterable

from holdfast.config import Address
from holdfast.ingest.target import Target

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Sidecar:
    """`listening` is the address that the listener is bound to; `hosts` are `ingest.hosts`."""

    def __init__(self, listening: Address, hosts: Iterable[str]) -> None:
        self.listening = listening
        self._names = frozenset({*LOCAL_NAMES, listening.host, *hosts})
        spelled = [f"[{name}]" if ":" in name else name for name in self._names]
        with_port = [f"{name}:{listening.port}" for name in spelled]
        self._host_values = frozenset(name.encode() for name in spelled + with_port)

    def answers_to(self, host_header: bytes) -> bool:
        return host_header.lower() in self._host_values

    def is_target(self, target: Target) -> bool:
        """Stricter than `Host`: without its port, a local name is another service on this machine."""
        return target.scheme == "http" and target.port == self.listening.port and target.host in self._names
