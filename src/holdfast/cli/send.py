"""`holdfast send`: one webhook through the gateway, as an app would send it."""

import argparse
import json
import re
import sys
from pathlib import Path

from holdfast.cli.addresses import dialled, spelled
from holdfast.cli.failure import MISUSED, Failure
from holdfast.cli.parsing import add_config, add_json, command_parser
from holdfast.cli.peer import Peer
from holdfast.cli.settings import load_config

METHODS = ("POST", "PUT", "PATCH", "DELETE")

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Header = tuple[bytes, bytes]


def send(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    address, token_file = _way_in(options)
    body = _body(options)
    headers = headers_of(options, body, _token(token_file) if token_file else None)
    with Peer(address) as peer:
        response = peer.exchange(options.method, "/", headers, body or b"")
        id = response.headers.get("holdfast-message-id")
        if id is None:
            raise peer.stranger()
    if options.json:
        # An ack_status of 204 has no body.
        print(json.dumps(response.json() if response.content else {"id": id}))
    else:
        print(id)
    if response.headers.get("holdfast-duplicate") == "true":
        print("holdfast: this key was used before; nothing new was queued", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("send")
    parser.add_argument("url", metavar="URL", type=_field, help="the receiver's URL")
    parser.add_argument("-X", "--method", type=str.upper, choices=METHODS, default="POST", help="default: POST")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("-d", "--data", metavar="DATA", help="the body")
    data.add_argument("--data-file", metavar="FILE", help="the file that is the body; - is standard input")
    parser.add_argument(
        "-H", "--header", dest="headers", metavar="'Name: value'", type=_header, action="append", default=[]
    )
    parser.add_argument("--key", metavar="KEY", type=_field, help="the idempotency key: the same again queues nothing")
    parser.add_argument("--delay", metavar="30s", type=_field, help="hold the first attempt back")
    parser.add_argument(
        "--to", metavar="ADDR", type=_address, help="the gateway (default: listen.ingest of the config)"
    )
    parser.add_argument("--token-file", metavar="FILE", help="the gateway's token (default: ingest.token_file)")
    add_config(parser)
    add_json(parser)
    return parser


def _way_in(options: argparse.Namespace) -> tuple[str, Path | None]:
    """Where to send, and the file of the token. The config's token goes to the config's gateway only."""
    named_token = Path(options.token_file) if options.token_file else None
    if options.to:
        return options.to, named_token
    config = load_config(options.config)
    return spelled(*dialled(str(config.listen.ingest))), named_token or config.ingest.token_file


def _body(options: argparse.Namespace) -> bytes | None:
    if options.data is not None:
        return str(options.data).encode("utf-8", "surrogateescape")
    if options.data_file is None:
        return None
    return sys.stdin.buffer.read() if options.data_file == "-" else _read(Path(options.data_file))


def _token(path: Path) -> bytes:
    token = _read(path).strip()
    if not token or not token.isascii() or not token.decode().isprintable():
        raise Failure(f"{path} holds no token: it has to be one line of visible ASCII characters", status=MISUSED)
    return token


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} can't be read: {error.strerror or error}", status=MISUSED) from error


def headers_of(options: argparse.Namespace, body: bytes | None, token: bytes | None) -> list[Header]:
    headers: list[Header] = [(b"Holdfast-Target", options.url)]
    if token is not None:
        headers.append((b"Holdfast-Token", token))
    if options.key is not None:
        headers.append((b"Idempotency-Key", options.key))
    if options.delay is not None:
        headers.append((b"Holdfast-Delay", options.delay))
    has_type = any(name.lower() == b"content-type" for name, _ in options.headers)
    if body is not None and not has_type:
        headers.append((b"Content-Type", content_type_of(body)))
    return [*headers, *options.headers]


def content_type_of(body: bytes) -> bytes:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return b"text/plain"
    return b"application/json"


def _header(text: str) -> Header:
    name, colon, value = text.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r} is not 'Name: value'")
    return name.encode(), _field(value)


def _field(text: str) -> bytes:
    """Text as the value of a header."""
    value = text.strip(" \t")
    if not all(character.isprintable() or character == "\t" for character in value):
        raise argparse.ArgumentTypeError(f"{text!r} has characters that no header may have")
    return value.encode()


def _address(text: str) -> str:
    try:
        return spelled(*dialled(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
