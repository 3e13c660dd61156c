"""Settings: a TOML file, the environment and flags become one frozen Config, or every fault at once.

tree.py      the Config tree that everyone reads
keys.py      every key: how it is read, its default, its meaning
readers.py   what a value may be: a TOML value becomes a Config value, or a BadValue
hosts.py     host names, patterns, networks, URLs and headers, as the readers need them
database.py  the URL of a database
layers.py    file, environment and flags laid over one another; unknown names
rules.py     what must hold between keys
files.py     the config's own file and those that it names, read within bounds
build.py     build() and load(), which join the above
units.py     durations and sizes
faults.py    Fault and ConfigError
"""

from holdfast.config.build import build, config_file, default_store_path, load
from holdfast.config.faults import ConfigError, Fault, unreadable
from holdfast.config.files import read_regular, stat_regular
from holdfast.config.hosts import is_loopback
from holdfast.config.tree import (
    Address,
    Config,
    DatabaseUrl,
    Delivery,
    Drain,
    Egress,
    Ingest,
    Listen,
    Log,
    Process,
    Retention,
    Route,
    Sign,
    Store,
)
from holdfast.config.units import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "Address",
    "Config",
    "ConfigError",
    "DatabaseUrl",
    "Delivery",
    "Drain",
    "Egress",
    "Fault",
    "Ingest",
    "Listen",
    "Log",
    "Process",
    "Retention",
    "Route",
    "Sign",
    "Store",
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
