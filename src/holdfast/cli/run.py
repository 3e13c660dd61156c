"""`holdfast run` starts the gateway; `holdfast check` validates a config."""

import argparse
import json
import os
import resource
from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.cli.arguments import add_config, add_json, command_parser, load_config
from holdfast.cli.command_error import MISUSED, CommandError, clean, warn
from holdfast.config import Config, ConfigError, config_file, load
from holdfast.core.ownership import Role

_FLAGS = {"store": "store.path", "ingest": "listen.ingest", "status": "listen.status"}


# -- run -------------------------------------------------------------------------------------------------------------


def run(arguments: list[str]) -> int:
    options = _run_parser().parse_args(arguments)
    disable_core_dumps()
    config = load_config(options.config, _flags(options))
    if options.role is not None and config.store.url is None:
        raise CommandError("--role is for replicas that share a database: it needs store.url", status=MISUSED)
    # After the config: the gateway's imports take longer than finding a fault.
    from holdfast.app import main

    file = config_file(options.config, os.environ)
    load_again = partial(load, options.config, os.environ, _flags(options), again=True)
    return main(config, load_again, file, Role(options.role or Role.ALL))


def disable_core_dumps() -> None:
    """A core dump would hold bodies and secrets. The hard limit stays: an operator can get one with `prlimit`."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _flags(options: argparse.Namespace) -> dict[str, str]:
    """The config's strongest layer, by dotted key."""
    named = {key: getattr(options, name) for name, key in _FLAGS.items() if getattr(options, name) is not None}
    return {**dict(options.settings), **named}


def _run_parser() -> argparse.ArgumentParser:
    parser = command_parser("run")
    add_config(parser)
    parser.add_argument("--store", metavar="PATH", help="the store's directory (store.path)")
    parser.add_argument("--ingest", metavar="ADDR", help="where webhooks are accepted (listen.ingest)")
    parser.add_argument("--status", metavar="ADDR", help="where the status is served (listen.status)")
    parser.add_argument(
        "--role",
        choices=[str(role) for role in Role],
        help="with store.url: ingest only accepts webhooks, deliver only sends them (default: all)",
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


# -- check -----------------------------------------------------------------------------------------------------------


def check(arguments: list[str]) -> int:
    """Checks a config as `holdfast run` would: with the secrets and certificates that it names."""
    parser = command_parser("check")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the config file; the same as --config")
    add_config(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.file and options.config:
        parser.error("name the file once, as FILE or with --config")
    # Here, so that `run` finds a fault in its config before it imports this.
    from holdfast.cli.output import facts
    from holdfast.config.hosts import DENIED_BY_NAME, names_among
    from holdfast.process.credentials import read_credentials

    named = options.file or options.config
    try:
        config = load(named, os.environ)
        read_credentials(config, os.environ)
    except ConfigError as error:
        _print_faults(error, options.json)
        return MISUSED
    denied = names_among(config.egress.deny)
    if denied:
        warn(f"warning: egress.deny has {', '.join(denied)}: {DENIED_BY_NAME}")
    document = _effect(config, named or os.environ.get("HOLDFAST_CONFIG") or None, os.environ)
    if options.json:
        print(json.dumps(document))
        return 0
    sources = [*filter(None, [document["file"]]), *document["environment"]]
    print(clean(f"ok: from {', '.join(sources)}" if sources else "ok: no config, only defaults"))
    pairs = [(name, document[name]) for name in ("store", "ingest", "status", "control")]
    if document["routes"]:
        pairs.append(("routes", ", ".join(document["routes"])))
    print("\n".join(facts(pairs)))
    return 0


def _effect(config: Config, file: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "ok": True,
        "file": file,
        "environment": sorted(name for name in environ if name.startswith("HOLDFAST_") and "__" in name),
        "store": str(config.store.url or config.store.path),
        "ingest": str(config.listen.ingest),
        "status": str(config.listen.status),
        "control": str(config.listen.control),
        "routes": list(config.routes),
    }


def _print_faults(error: ConfigError, as_json: bool) -> None:
    if as_json:
        faults = [{"key": each.key, "problem": each.problem, "allowed": each.allowed} for each in error.faults]
        print(json.dumps({"ok": False, "faults": faults}))
        return
    for fault in error.faults:
        warn(str(fault))
