"""Installs what the peers need under one folder: wheels in a virtual environment, node's modules, Redis.

Nothing is changed outside of that folder, except that node comes from the distribution's packages where it is missing
and this runs as root. Redis, where it is missing, is unpacked from its package and not installed: no service starts.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

APPS = Path(__file__).with_name("peer_apps")
PATIENCE = 600
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "liblua5.1-0", "lua-cjson", "lua-bitop")


class CannotInstall(Exception):
    """Something that a peer needs can't be had on this machine."""


class Installed:
    """Each is installed when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)

    def python(self) -> Path:
        wanted = APPS / "requirements.txt"
        home = self._folder / "venv"
        if _changed(wanted, home / "installed"):
            _do([sys.executable, "-m", "venv", str(home)], self._folder)
            _do([str(home / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(wanted)], self._folder)
            shutil.copy(wanted, home / "installed")
        return home / "bin"

    def node(self) -> tuple[str, Path]:
        """node itself, and the folder with its modules and the apps: modules are looked for beside who imports them."""
        if not (shutil.which("node") and shutil.which("npm")):
            _apt_install("nodejs", "npm")
        home = self._folder / "node"
        home.mkdir(exist_ok=True)
        if _changed(APPS / "package.json", home / "installed"):
            shutil.copy(APPS / "package.json", home)
            _do(["npm", "install", "--silent", "--no-audit", "--no-fund"], home)
            shutil.copy(APPS / "package.json", home / "installed")
        for app in APPS.glob("*.js"):
            shutil.copy(app, home)
        return "node", home

    def redis(self) -> tuple[str, Mapping[str, str]]:
        """The server, and the environment that it needs."""
        found = shutil.which("redis-server")
        if found:
            return found, {}
        home = self._folder / "redis"
        if not (home / "usr/bin/redis-server").exists():
            home.mkdir(exist_ok=True)
            _apt_download(home)
        libraries = sorted({str(file.parent) for file in home.glob("usr/lib/**/*.so*")})
        return str(home / "usr/bin/redis-server"), {"LD_LIBRARY_PATH": ":".join(libraries)}


def _changed(wanted: Path, installed: Path) -> bool:
    return not installed.exists() or installed.read_bytes() != wanted.read_bytes()


def _apt_download(home: Path) -> None:
    try:
        _do(["apt-get", "download", *REDIS_PACKAGES], home)
    except CannotInstall:
        if os.geteuid() != 0:
            raise
        _do(["apt-get", "update"], home)
        _do(["apt-get", "download", *REDIS_PACKAGES], home)
    for package in sorted(home.glob("*.deb")):
        _do(["dpkg", "-x", str(package), str(home)], home)


def _apt_install(*packages: str) -> None:
    if os.geteuid() != 0:
        raise CannotInstall(f"{' and '.join(packages)} are missing, and only root can install them")
    _do(["apt-get", "install", "-y", "--no-install-recommends", *packages], Path())


def _do(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise CannotInstall(f"{' '.join(command[:3])} ended with {done.returncode}: {last[0]}")
