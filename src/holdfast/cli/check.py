"""`holdfast check`: is a config good, and what does it come to?

As `holdfast run` would find it: with the secrets and certificates that it names.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from holdfast.cli.failure import MISUSED
from holdfast.cli.parsing import add_config, add_json, command_parser
from holdfast.cli.text import clean, facts
from holdfast.config import Config, ConfigError, load
from holdfast.config.hosts import DENIED_BY_NAME, names_among
from holdfast.process.credentials import read_credentials


def check(arguments: list[str]) -> int:
    parser = command_parser("check")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the config file; the same as --config")
    add_config(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.file and options.config:
        parser.error("name the file once, as FILE or with --config")
    named = options.file or options.config
    try:
        config = load(named, os.environ)
        read_credentials(config, os.environ)
    except ConfigError as error:
        _tell_faults(error, options.json)
        return MISUSED
    denied = names_among(config.egress.deny)
    if denied:
        print(f"holdfast: warning: egress.deny has {', '.join(denied)}: {DENIED_BY_NAME}", file=sys.stderr)
    document = describe(config, named or os.environ.get("HOLDFAST_CONFIG") or None, os.environ)
    print(json.dumps(document) if options.json else "\n".join(render(document)))
    return 0


def describe(config: Config, file: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
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


def render(document: dict[str, Any]) -> list[str]:
    sources = [*filter(None, [document["file"]]), *document["environment"]]
    pairs = [(name, document[name]) for name in ("store", "ingest", "status", "control")]
    if document["routes"]:
        pairs.append(("routes", ", ".join(document["routes"])))
    return [clean(f"ok: from {', '.join(sources)}" if sources else "ok: no config at all, the defaults"), *facts(pairs)]


def _tell_faults(error: ConfigError, as_json: bool) -> None:
    if as_json:
        faults = [{"key": each.key, "problem": each.problem, "allowed": each.allowed} for each in error.faults]
        print(json.dumps({"ok": False, "faults": faults}))
        return
    for fault in error.faults:
        print(f"holdfast: {clean(str(fault))}", file=sys.stderr)
