"""Settings: a TOML file, the environment and flags become one frozen Config, or a ConfigError with every fault.

tree.py          the Config tree; the sections that core owns (retry, circuit) are core's classes
keys.py          every key: how it is read, its default, its meaning
readers.py       how values are read: durations, sizes, numbers, choices, lists, paths, addresses
hosts.py         the syntax of host names, patterns, networks, addresses, URLs and headers
rules.py         rules between keys
build.py         build() and load(): layers, unknown names, defaults that depend on other keys
config_files.py  reads the config file and the files that it names, within bounds
faults.py        ConfigFault and ConfigError
"""

from holdfast.config.build import build, config_file, default_store_path, load
from holdfast.config.config_files import read_regular, stat_regular
from holdfast.config.faults import ConfigError, ConfigFault, unreadable
from holdfast.config.hosts import is_loopback
from holdfast.config.readers import format_duration, format_size, parse_duration, parse_size
from holdfast.config.tree import (
    Address,
    Config,
    DatabaseUrl,
    EgressSettings,
    IngestSettings,
    ListenSettings,
    RouteSettings,
    SignSettings,
)

__all__ = [
    "Address",
    "Config",
    "ConfigError",
    "ConfigFault",
    "DatabaseUrl",
    "EgressSettings",
    "IngestSettings",
    "ListenSettings",
    "RouteSettings",
    "SignSettings",
    "build",
    "config_file",
    "default_store_path",
    "format_duration",
    "format_size",
    "is_loopback",
    "load",
    "parse_duration",
    "parse_size",
    "read_regular",
    "stat_regular",
    "unreadable",
]
