"""`holdfast health`: an exit status for exec probes. It prints something only if the gateway is not healthy.

A probe runs it every few seconds, so it imports next to nothing and speaks HTTP on a raw socket.
"""

import os
import socket
from time import monotonic  # noqa: TID251  one deadline for all reads; the gateway's clock needs trio

from holdfast.cli.arguments import add_config, command_parser, format_address, parse_address
from holdfast.cli.command_error import CommandError

TIMEOUT = 3.0

_DEFAULT = "127.0.0.1:8801"
_VARIABLE = "HOLDFAST_LISTEN__STATUS"
_LONGEST_ANSWER = 16 << 10


def health(arguments: list[str]) -> int:
    parser = command_parser("health")
    parser.add_argument(
        "--status", metavar="ADDR", help=f"the status listener (default: ${_VARIABLE}, else the config)"
    )
    add_config(parser)
    options = parser.parse_args(arguments)
    address = options.status or os.environ.get(_VARIABLE) or _configured(options.config)
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise CommandError(str(error)) from None
    check_health(host, port)
    return 0


def check_health(host: str, port: int, timeout: float = TIMEOUT) -> None:
    """Returns if the gateway is healthy, else raises a CommandError that says why not."""
    where = format_address(host, port)
    try:
        status, answer = _answer(host, port, monotonic() + timeout)
    except TimeoutError:
        raise CommandError(f"not healthy: {where} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise CommandError(f"not healthy: {where}: {error.strerror or error}") from None
    if status != b"200":
        shown = (status + b" " + answer.partition(b"\r\n\r\n")[2].strip()).decode("utf-8", "replace")
        raise CommandError(f"not healthy: {where} answered {shown.strip() or 'nothing'}")


def _answer(host: str, port: int, deadline: float) -> tuple[bytes, bytes]:
    """The status code and the whole answer; after a 200 the rest is not read."""
    answer = b""
    with socket.create_connection((host, port), _left(deadline)) as connection:
        request = f"GET /healthz HTTP/1.1\r\nHost: {format_address(host, port)}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        while len(answer) < _LONGEST_ANSWER:
            try:
                connection.settimeout(_left(deadline))
                received = connection.recv(_LONGEST_ANSWER)
            except TimeoutError:
                if b"\r\n" in answer:  # it answered, but keeps the connection open
                    break
                raise
            answer += received
            if not received or answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")):
                break
    words = answer.partition(b"\r\n")[0].split(b" ", 2)
    return (words[1] if answer.startswith(b"HTTP/1.") and len(words) > 1 else b""), answer


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _configured(file: str | None) -> str:
    """`listen.status` of the config file. The rest of the file is not validated here."""
    name = file or os.environ.get("HOLDFAST_CONFIG")
    if not name:
        return _DEFAULT
    import tomllib

    try:
        with open(name, "rb") as opened:  # noqa: PTH123  pathlib would double the imports
            listen = tomllib.load(opened).get("listen", {})
    except OSError as error:
        raise CommandError(f"{name} can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CommandError(f"{name} is not valid TOML: {error}") from None
    return str(listen.get("status", _DEFAULT)) if isinstance(listen, dict) else _DEFAULT
