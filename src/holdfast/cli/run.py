"""`holdfast run`: the gateway itself."""

import argparse
import os
import resource
from functools import partial

from holdfast.cli.failure import MISUSED, Failure
from holdfast.cli.parsing import add_config, command_parser
from holdfast.cli.settings import load_config
from holdfast.config import config_file, load
from holdfast.core.ownership import Role

_FLAGS = {"store": "store.path", "ingest": "listen.ingest", "status": "listen.status"}


def run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    leave_no_core()
    config = load_config(options.config, flags_of(options))
    if options.role is not None and config.store.url is None:
        raise Failure("--role is for replicas that share a database: it needs store.url", status=MISUSED)
    # After the config: the gateway's imports take longer than finding a fault.
    from holdfast.app import main

    file = config_file(options.config, os.environ)
    load_again = partial(load, options.config, os.environ, flags_of(options), again=True)
    return main(config, load_again, file, Role(options.role or Role.ALL))


def leave_no_core() -> None:
    """Bodies and secrets would be in it. The hard limit stays: an operator who wants one has it with `prlimit`."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def flags_of(options: argparse.Namespace) -> dict[str, str]:
    """The config's strongest layer, by dotted key."""
    flags = dict(options.settings)
    flags.update({key: getattr(options, name) for name, key in _FLAGS.items() if getattr(options, name) is not None})
    return flags


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("run")
    add_config(parser)
    parser.add_argument("--store", metavar="PATH", help="the folder of the store (store.path)")
    parser.add_argument("--ingest", metavar="ADDR", help="where webhooks come in (listen.ingest)")
    parser.add_argument("--status", metavar="ADDR", help="where the status is shown (listen.status)")
    parser.add_argument(
        "--role",
        choices=[str(role) for role in Role],
        help="with store.url: ingest only takes webhooks, deliver only sends them (default: all)",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="any key of the config; may be repeated",
    )
    return parser


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECTION.KEY=VALUE")
    return key.strip(), value
