"""Reads the secrets that the config names: the token, signing secrets, certificates, authorities, the proxy's password.

`holdfast run`, a reload and `holdfast check` read all of them together and report every fault at once. Nothing here is
ever stored, logged or shown.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import Config, ConfigError, ConfigFault, DatabaseUrl, read_regular, unreadable
from holdfast.core.errors import SecretMissing
from holdfast.delivery.service import RouteKeys
from holdfast.delivery.signing import Signer
from holdfast.delivery.tls import ClientCertificate, Contexts, UnusableFile
from holdfast.ingest.access import read_token

_LOGIN = re.compile(rb"[^\x00-\x1f\x7f:]+:[^\x00-\x1f\x7f]*")


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """`repr` is off, so that no log or traceback shows a secret."""

    token: bytes | None
    proxy_authorization: bytes | None
    route_keys: RouteKeys
    contexts: Contexts


def read_credentials(config: Config, environ: Mapping[str, str]) -> Credentials:
    """Raises a ConfigError with every fault."""
    faults: list[ConfigFault] = []
    token = authorization = contexts = None
    signers: dict[str, Signer] = {}
    certificates: dict[str, ClientCertificate] = {}
    if (token_file := config.ingest.token_file) is not None:
        with _gathered(faults, "ingest.token_file"):
            token = read_token(token_file)
    with _gathered(faults, "delivery.proxy_credentials_file"):
        login_file = config.delivery.proxy_credentials_file
        authorization = _read_login(login_file) if login_file is not None else None
    for name, route in config.routes.items():
        if route.sign is not None:
            with _gathered(faults, f"routes.{name}.sign"):
                signers[name] = Signer(route.sign, environ)
        if route.client_cert_file is not None:
            with _gathered(faults, f"routes.{name}.client_cert_file"):
                certificates[name] = ClientCertificate(name, route.client_cert_file, route.client_key_file)
    with _gathered(faults, "delivery.ca_file"):
        contexts = Contexts(config.delivery.ca_file, certificates)
    if config.store.url is not None:
        with _gathered(faults, "store.url"):
            judge_database(config.store.url)
    if faults or contexts is None:
        raise ConfigError(faults)
    return Credentials(token, authorization, RouteKeys(signers, certificates), contexts)


@contextmanager
def _gathered(faults: list[ConfigFault], key: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        faults.extend(error.faults)
    except (SecretMissing, UnusableFile) as error:
        faults.append(ConfigFault(key, str(error)))


def judge_database(url: DatabaseUrl) -> None:
    """Raises a ConfigError if the driver is missing, or does not understand an option of the URL."""
    try:
        from holdfast.store.postgres.transactions import url_fault
    except ImportError as error:
        missing = f'needs the extra "postgres" ({error})'
        raise ConfigError(
            [ConfigFault("store.url", missing, 'with holdfast installed as "holdfast[postgres]"')]
        ) from error
    unknown = url_fault(url.whole)
    if unknown is not None:
        raise ConfigError([ConfigFault("store.url", unknown)])


def _read_login(path: Path) -> bytes:
    """The value of `Proxy-Authorization`, from a file that holds user:password."""
    try:
        login = read_regular(path).strip()
    except OSError as error:
        raise UnusableFile(unreadable(path, error)) from error
    if not _LOGIN.fullmatch(login):
        raise UnusableFile(f"{path} does not hold one line with user:password")
    return b"Basic " + b64encode(login)
