"""Which address to dial for one that is listened on. Standard library only: `holdfast health` uses it."""

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def dialled(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT"; ValueError if it is none.

    A listener on every address is reached by loopback, and answers to that name.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536
    is_host = all(each.isascii() and (each.isalnum() or each in "-._:%") for each in bare)
    if not is_port or not is_host or (":" in bare and bare == host):
        raise ValueError(f'"{address}" is not an address; write HOST:PORT, such as 127.0.0.1:8800')
    return _ANY.get(bare, bare), int(port)


def spelled(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
