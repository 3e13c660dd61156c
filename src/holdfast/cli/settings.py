"""The config as a command needs it: loaded from this process's surroundings, its faults told one a line."""

import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.cli.failure import MISUSED, Failure
from holdfast.config import Config, ConfigError, load


def load_config(file: str | None, flags: Mapping[str, str] | None = None) -> Config:
    try:
        return load(file, os.environ, flags or {})
    except ConfigError as error:
        raise Failure(*map(str, error.faults), status=MISUSED) from error


def control_socket(socket: str | None, file: str | None) -> Path:
    """The socket that was named, else the config's: a named one works whatever the config is like."""
    return Path(socket) if socket else load_config(file).listen.control
