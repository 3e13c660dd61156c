"""Which package may import which, and that each package lists its modules."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"

SHARED_BY_STORES = {f"store.{path.stem}" for path in (SOURCE / "store").glob("[!_]*.py")}
ALLOWED = {
    "": {
        *("core", "http", "config", "ingest", "delivery", "operate", "process", "split"),
        *("clock", "events", "store.port", "store.embedded.spool"),
    },
    "core": {"core"},
    "http": {"http"},
    "config": {"config", "core"},
    "store": {*SHARED_BY_STORES, "core", "clock"},
    # The two engines don't import each other. Commands on a stopped store import both.
    "store/embedded": {*SHARED_BY_STORES, "store.embedded", "core", "clock"},
    "store/postgres": {*SHARED_BY_STORES, "store.postgres", "core", "clock", "__version__"},
    "store/offline": {*SHARED_BY_STORES, "store.embedded", "store.postgres", "store.offline", "core", "clock"},
    "ingest": {"ingest", "core", "http", "config", "store.port"},
    "delivery": {
        "delivery",
        "core",
        "http",
        "config",
        "store.port",
        "store.transfer",
        "clock",
        "events",
        "__version__",
    },
    "operate": {"operate", "core", "http", "store.port", "clock", "events", "config", "__version__"},
    "cli": {
        *("cli", "core", "config", "app", "process.credentials", "demo", "__version__"),
        *("store.offline", "store.maintenance", "store.transfer", "store.private_files", "store.postgres.migration"),
    },
    # The parts of the composition: each may import every package but the command line.
    "process": {
        *("process", "core", "http", "config", "store", "ingest", "delivery", "operate", "clock", "events"),
        "__version__",
    },
    # A composition like app.py: it may import every package but the command line.
    "demo": {
        *("demo", "core", "http", "config", "store", "ingest", "delivery", "operate", "clock", "events", "process"),
    },
    # Two processes of one composition: each end imports the packages that it connects.
    "split": {
        *("split", "core", "config", "process", "clock", "delivery.egress", "http.wire"),
        *("store.port", "store.records", "store.embedded.ledger"),
    },
}
THIRD_PARTY = {
    "": {"trio"},
    "core": set(),
    "http": {"trio", "h11", "httptools", "httpx", "outcome"},
    "config": {"idna"},
    "store": {"trio", "msgpack", "outcome"},
    "store/embedded": {"trio", "lmdb", "outcome"},
    "store/offline": {"trio"},
    "store/postgres": {"trio", "outcome", "psycopg"},
    "ingest": set(),
    "delivery": {"trio", "cryptography"},
    "operate": {"trio", "prometheus_client"},
    "cli": set(),
    "demo": {"trio"},
    "process": {"trio"},
    "split": {"trio"},
}
ALONE = {
    "lmdb": "store/embedded/lmdb.py",
    "msgpack": "store/records.py",
    "h11": "http/codec_h11.py",
    "prometheus_client": "operate/exposition.py",
    "cryptography": "delivery/signing.py",
    "idna": "config/hosts.py",
}
STANDARD = __import__("sys").stdlib_module_names


@cache
def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def inside(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(entry + ".") for entry in allowed)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    for path in (SOURCE / package).glob("*.py"):
        for name in imports(path):
            top, _, rest = name.partition(".")
            if top == "holdfast":
                assert inside(rest, ALLOWED[package]), f"{path.relative_to(SOURCE)} imports {name}"
            else:
                assert top in STANDARD or top in THIRD_PARTY[package], f"{path.relative_to(SOURCE)} imports {name}"


@pytest.mark.parametrize(("module", "home"), ALONE.items())
def test_a_library_is_imported_by_one_module(module: str, home: str) -> None:
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(name.partition(".")[0] == module for name in imports(path))
    }
    assert users == {home}


def test_every_package_has_rules() -> None:
    packages = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
    assert {"" if package == "." else package for package in packages} == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_the_docstring_of_a_package_names_its_modules(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text())) or ""
    modules = {path.name for path in (SOURCE / package).glob("*.py")} - {"__init__.py"}
    assert modules - set(re.findall(r"\w+\.py", docstring)) == set()
