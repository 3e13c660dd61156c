"""`holdfast send`: sends one webhook to ingest, as an app does."""

import argparse
import json
import re
import sys
from pathlib import Path

from holdfast.cli.arguments import add_config, add_json, command_parser, format_address, load_config, parse_address
from holdfast.cli.command_error import MISUSED, CommandError, warn
from holdfast.cli.control_client import HttpClient

METHODS = ("POST", "PUT", "PATCH", "DELETE")

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Header = tuple[bytes, bytes]


def send(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    address, token_file = _destination(options)
    body = _body(options)
    headers = _headers(options, body, _token(token_file) if token_file else None)
    with HttpClient(address) as client:
        response = client.exchange(options.method, "/", headers, body or b"")
        id = response.headers.get("holdfast-message-id")
        if id is None:
            raise client.not_a_gateway()
    # With an ack_status of 204 there is no body.
    print(json.dumps(response.json() or {"id": id}) if options.json else id)
    if response.headers.get("holdfast-duplicate") == "true":
        warn("this key was used before; nothing new was queued")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("send")
    parser.add_argument("url", metavar="URL", type=_field, help="the receiver's URL")
    parser.add_argument("-X", "--method", type=str.upper, choices=METHODS, default="POST", help="default: POST")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("-d", "--data", metavar="DATA", help="the body")
    data.add_argument("--data-file", metavar="FILE", help="a file with the body; - for stdin")
    header = parser.add_argument("-H", "--header", dest="headers", type=_header, action="append", default=[])
    header.metavar, header.help = "'Name: value'", "a header of the webhook; may be repeated"
    parser.add_argument("--key", metavar="KEY", type=_field, help="the idempotency key: the same again queues nothing")
    parser.add_argument("--delay", metavar="30s", type=_field, help="delay the first attempt")
    parser.add_argument("--to", metavar="ADDR", type=_address, help="the gateway (default: the config's listen.ingest)")
    parser.add_argument("--token-file", metavar="FILE", help="the gateway's token (default: ingest.token_file)")
    add_config(parser)
    add_json(parser)
    return parser


def _destination(options: argparse.Namespace) -> tuple[str, Path | None]:
    """The address and the token file. The config's token goes to the config's gateway only."""
    named_token = Path(options.token_file) if options.token_file else None
    if options.to:
        return options.to, named_token
    config = load_config(options.config)
    return format_address(*parse_address(str(config.listen.ingest))), named_token or config.ingest.token_file


def _body(options: argparse.Namespace) -> bytes | None:
    if options.data is not None:
        return str(options.data).encode("utf-8", "surrogateescape")
    if options.data_file is None:
        return None
    return sys.stdin.buffer.read() if options.data_file == "-" else _read(Path(options.data_file))


def _token(path: Path) -> bytes:
    token = _read(path).strip()
    if not token or not token.isascii() or not token.decode().isprintable():
        raise CommandError(f"{path} holds no token: it has to be one line of visible ASCII characters", status=MISUSED)
    return token


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror or error}", status=MISUSED) from error


def _headers(options: argparse.Namespace, body: bytes | None, token: bytes | None) -> list[Header]:
    has_type = any(name.lower() == b"content-type" for name, _ in options.headers)
    given = {
        b"Holdfast-Target": options.url,
        b"Holdfast-Token": token,
        b"Idempotency-Key": options.key,
        b"Holdfast-Delay": options.delay,
        b"Content-Type": None if body is None or has_type else content_type_of(body),
    }
    return [*((name, value) for name, value in given.items() if value is not None), *options.headers]


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
    """The value of a header, as argparse's `type`."""
    value = text.strip(" \t")
    if not all(character.isprintable() or character == "\t" for character in value):
        raise argparse.ArgumentTypeError(f"{text!r} has characters that are not allowed in a header")
    return value.encode()


def _address(text: str) -> str:
    try:
        return format_address(*parse_address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
