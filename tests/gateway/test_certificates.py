"""Receivers with bad certificates: nothing is sent, the attempt records why, and it counts against the host."""

import ipaddress
import random
import ssl
from base64 import encodebytes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID, ObjectIdentifier

from tests.gateway.hostile import Memory
from tests.support import fork_server
from tests.support.harness import Gateway, Receiver, running, until

NOW, DAY = datetime.now(UTC), timedelta(days=1)
HERE = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
LOCALHOST = x509.DNSName("localhost")
NAMES: tuple[x509.GeneralName, ...] = (LOCALHOST, HERE)
Extension = tuple[x509.ExtensionType, bool]
"""What it says, and whether it is critical."""


class Issued(NamedTuple):
    """`chain` is what a receiver shows, its own certificate first."""

    chain: tuple[x509.Certificate, ...]
    key: CertificateIssuerPrivateKeyTypes


def issue(
    name: str,
    by: Issued | None = None,
    *extensions: Extension,
    names: Sequence[x509.GeneralName] = (),
    is_authority: bool | None = False,
    since: timedelta = -DAY,
    key: CertificateIssuerPrivateKeyTypes | None = None,
) -> Issued:
    """Self-signed unless `by` somebody. The root that is trusted is in no chain."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, number = by.chain[0].subject if by else subject, x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), number)
    builder = builder.not_valid_before(NOW + since).not_valid_after(NOW + since + 2 * DAY)
    if is_authority is not None:
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(by.key if by else key, SHA256())
    return Issued((certificate, *(by.chain if by and by is not ROOT else ())), key)


ROOT = issue("root", is_authority=True)


def leaf(*extensions: Extension, by: Issued = ROOT, names: Sequence[x509.GeneralName] = NAMES, **more: Any) -> Issued:
    return issue(more.pop("name", "leaf"), by, *extensions, names=names, **more)


def der(tag: int, content: bytes) -> bytes:
    """For what no library would write."""
    size = len(content)
    return bytes([tag, *([size] if size < 128 else [0x82, size >> 8, size & 255])]) + content


def dns_name(text: bytes) -> Extension:
    names = der(0x30, der(0x82, text))
    return x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names), False


def address(text: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(text))


def many(count: int) -> list[x509.GeneralName]:
    return [x509.DNSName(f"{number}.example") for number in range(count)]


def between(*extensions: Extension, is_authority: bool | None = True) -> Issued:
    return issue("between", ROOT, *extensions, is_authority=is_authority)


def named_like_the_root() -> Issued:
    return leaf(by=issue("root", is_authority=True))


def issuer_not_shown() -> Issued:
    issued = leaf(by=between())
    return issued._replace(chain=issued.chain[:1])


def only_for(purpose: ObjectIdentifier) -> Extension:
    return x509.ExtendedKeyUsage([purpose]), False


ODD: dict[str, tuple[Callable[[], Issued], str]] = {
    "expired": (lambda: leaf(since=-9 * DAY), "has expired"),
    "not yet valid": (lambda: leaf(since=DAY), "not yet valid"),
    "self-signed": (lambda: issue("localhost", names=NAMES), "self-signed certificate"),
    "self-signed, an authority": (lambda: issue("localhost", names=NAMES, is_authority=True), "self-signed"),
    "by another root of the same name": (named_like_the_root, "certificate refused"),
    "another name": (lambda: leaf(names=[x509.DNSName("other.example")]), "not valid for 'localhost'"),
    "the name in the subject alone": (lambda: leaf(name="localhost", names=()), "not valid for 'localhost'"),
    "a wildcard for everything": (lambda: leaf(names=[x509.DNSName("*")]), "not valid for 'localhost'"),
    "a wildcard one level down": (lambda: leaf(names=[x509.DNSName("*.localhost")]), "not valid for 'localhost'"),
    "a wildcard inside a label": (lambda: leaf(names=[x509.DNSName("l*t")]), "not valid for 'localhost'"),
    "a URI": (lambda: leaf(names=[x509.UniformResourceIdentifier("https://localhost")]), "not valid for 'localhost'"),
    "an address, asked by name": (lambda: leaf(names=[HERE]), "not valid for 'localhost'"),
    "a NUL after the name": (lambda: leaf(dns_name(b"localhost\0.evil.example"), names=()), "not valid for"),
    "an unknown critical extension": (
        lambda: leaf((x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"x"), True)),
        "unhandled critical extension",
    ),
    "a weak key": (lambda: leaf(key=rsa.generate_private_key(65537, 1024)), "key too weak"),
    "an odd curve": (lambda: leaf(key=ec.generate_private_key(ec.SECP256K1())), "HANDSHAKE_FAILURE"),
    "for clients alone": (lambda: leaf(only_for(ExtendedKeyUsageOID.CLIENT_AUTH)), "unsuitable certificate purpose"),
    "an issuer that is not shown": (issuer_not_shown, "unable to get local issuer certificate"),
    "an issuer that is no authority": (lambda: leaf(by=between(is_authority=False)), "invalid CA certificate"),
    "an issuer that does not say": (lambda: leaf(by=between(is_authority=None)), "invalid CA certificate"),
    "a name its issuer may not certify": (
        lambda: leaf(by=between((x509.NameConstraints(None, [LOCALHOST]), True))),
        "excluded subtree violation",
    ),
    "such a name in the subject alone": (
        lambda: leaf(by=between((x509.NameConstraints(None, [LOCALHOST]), True)), name="localhost", names=()),
        "not valid for 'localhost'",
    ),
    "10,000 names": (lambda: leaf(names=[*many(10_000), LOCALHOST]), "EXCESSIVE_MESSAGE_SIZE"),
    "more constraints than can be compared": (
        lambda: leaf(by=between((x509.NameConstraints(None, many(1_200)), True)), names=[*many(1_200), LOCALHOST]),
        "certificate refused",
    ),
}
ASKED_BY_ADDRESS: dict[str, tuple[Callable[[], Issued], str]] = {
    "a name": (lambda: leaf(names=[LOCALHOST]), "not valid for '127.0.0.1'"),
    "the address in the subject alone": (lambda: leaf(name="127.0.0.1", names=()), "not valid for '127.0.0.1'"),
    "the address as a name": (lambda: leaf(names=[x509.DNSName("127.0.0.1")]), "not valid for '127.0.0.1'"),
    "the address as a wildcard": (lambda: leaf(names=[x509.DNSName("*.0.0.1")]), "not valid for '127.0.0.1'"),
    "another address": (lambda: leaf(names=[address("127.0.0.2")]), "not valid for '127.0.0.1'"),
    "the address inside IPv6": (lambda: leaf(names=[address("::ffff:127.0.0.1")]), "not valid for '127.0.0.1'"),
}
CASES = {**{f"{name}, by name": case for name, case in ODD.items()}, **ASKED_BY_ADDRESS}


def showing(issued: Issued, folder: Path) -> ssl.SSLContext:
    """However weak it is."""
    file = folder / f"{issued.chain[0].serial_number}.pem"
    key = issued.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in issued.chain) + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(file)
    return context


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """It trusts the root; one attempt a message."""
    folder = tmp_path_factory.mktemp("certificates")
    ca_file = folder / "ca.pem"
    ca_file.write_bytes(ROOT.chain[0].public_bytes(Encoding.PEM))
    with fork_server.executing(), running(folder / "store", delivery__ca_file=ca_file, retry__base="1h") as gateway:
        yield gateway


def attempted(gateway: Gateway, url: str) -> dict[str, Any]:
    id = gateway.post(url, b"secret").json()["id"]
    return dict(until(lambda: gateway.message(id)["attempts"])[0])


@pytest.fixture(scope="module")
def results(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Of each the attempt, and how much reached the receiver."""
    folder, found = tmp_path_factory.mktemp("receivers"), {}
    with ExitStack() as stack:
        good = Receiver(showing(leaf(), folder))
        stack.callback(good.close)
        assert attempted(gateway, f"https://localhost:{good.port}/good")["status"] == 200
        memory = Memory(gateway)
        for name, (make, _) in CASES.items():
            receiver = Receiver(showing(make(), folder))
            stack.callback(receiver.close)
            host = "127.0.0.1" if name in ASKED_BY_ADDRESS else "localhost"
            found[name] = attempted(gateway, f"https://{host}:{receiver.port}/hook"), len(receiver.requests)
        assert attempted(gateway, f"https://localhost:{good.port}/after")["status"] == 200
        yield {**found, "growth": memory.growth}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_certificate_fails_the_attempt_with_its_reason_and_nothing_is_sent(
    results: dict[str, Any], name: str
) -> None:
    attempt, received = results[name]
    assert (attempt["error"], attempt["fault"], received) == ("tls", "host", 0), attempt
    assert CASES[name][1] in attempt["detail"]


def test_memory_stays_flat_and_the_log_has_no_errors(gateway: Gateway, results: dict[str, Any]) -> None:
    assert results["growth"] < 24 * 1024
    assert "Traceback" not in gateway.log.read_text()
    assert not [event for event in gateway.events() if event["level"] in ("error", "critical")]


@pytest.mark.parametrize(("exchange", "outcome"), [("ECDHE", None), ("DHE", "tls")])
def test_finite_field_key_exchange_is_refused(
    gateway: Gateway, tmp_path: Path, exchange: str, outcome: str | None
) -> None:
    """With DHE it chooses the prime, which need not even be one; the handshake would hold up everything else."""
    numbers = der(0x30, der(2, b"\x7f" + random.Random(0).randbytes(510) + b"\x01") + der(2, b"\x02"))
    file = tmp_path / "dh.pem"
    lines = [b"-----BEGIN DH PARAMETERS-----", encodebytes(numbers).strip(), b"-----END DH PARAMETERS-----", b""]
    file.write_bytes(b"\n".join(lines))
    context = showing(leaf(key=rsa.generate_private_key(65537, 2048)), tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{exchange}-RSA-AES128-GCM-SHA256")
    context.load_dh_params(file)
    receiver = Receiver(context)
    try:
        assert attempted(gateway, f"https://localhost:{receiver.port}/hook")["error"] == outcome
    finally:
        receiver.close()


@pytest.mark.parametrize(("group", "outcome"), [("secp384r1", None), ("ffdhe8192", "tls")])
def test_finite_field_groups_of_tls_1_3_are_refused(
    gateway: Gateway, tmp_path: Path, group: str, outcome: str | None
) -> None:
    """TLS 1.3 has its own finite fields, which no list of ciphers leaves out."""
    context = showing(leaf(), tmp_path)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve(group)
    receiver = Receiver(context)
    try:
        attempt = attempted(gateway, f"https://localhost:{receiver.port}/hook")
    finally:
        receiver.close()
    assert attempt["error"] == outcome
    assert outcome is None or "finite field" in attempt["detail"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_missing_client_certificate_is_recorded_as_a_tls_failure(
    gateway: Gateway, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """In TLS 1.3 its alert comes after the handshake, in the place of an answer."""
    context = showing(leaf(), tmp_path)
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=ROOT.chain[0].public_bytes(Encoding.DER))
    receiver = Receiver(context)
    try:
        attempt = attempted(gateway, f"https://localhost:{receiver.port}/hook")
    finally:
        receiver.close()
    assert (attempt["error"], attempt["fault"], receiver.requests) == ("tls", "host", [])
    assert "ALERT" in attempt["detail"]
