"""The files of TLS: bad ones are reported, and a renewed certificate is read again."""

import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from holdfast.delivery.egress import ROUTE_ZONE
from holdfast.delivery.tls import ClientCertificate, Contexts, UnusableFile
from holdfast.http.dial import Origin


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, issued: trustme.LeafCert) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(issued.private_key_pem.bytes())
    return cert, key


def origin(zone: str = "") -> Origin:
    return Origin("https", "a.example", 443, zone)


def test_verification_is_on_and_old_versions_are_off(tmp_path: Path, authority: trustme.CA) -> None:
    certificate = ClientCertificate("billing", *write(tmp_path, authority.issue_cert("client.example")))
    contexts = Contexts(None, {"billing": certificate})
    for context in (contexts.context(origin()), contexts.context(origin(certificate.zone))):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_renegotiation_is_allowed_only_for_routes_with_a_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    """Other receivers could ask for one handshake after another, and each takes CPU."""
    certificate = ClientCertificate("billing", *write(tmp_path, authority.issue_cert("client.example")))
    contexts = Contexts(None, {"billing": certificate})
    assert contexts.context(origin()).options & ssl.OP_NO_RENEGOTIATION
    assert not contexts.context(origin(certificate.zone)).options & ssl.OP_NO_RENEGOTIATION


def test_sslkeylogfile_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert Contexts(None, {}).context(origin()).keylog_filename is None


def test_a_configured_authority_is_added_and_its_file_is_read_once(tmp_path: Path, authority: trustme.CA) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(authority.cert_pem.bytes())
    contexts = Contexts(file, {})
    file.unlink()
    trusted = contexts.context(origin()).get_ca_certs(binary_form=True)
    assert ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode()) in trusted


def test_a_certificate_is_used_for_its_own_route_only(tmp_path: Path, authority: trustme.CA) -> None:
    certificate = ClientCertificate("billing", *write(tmp_path, authority.issue_cert("client.example")))
    contexts = Contexts(None, {"billing": certificate})
    plain = contexts.context(origin())
    assert contexts.context(origin(ROUTE_ZONE)) is plain
    assert contexts.context(origin(certificate.zone)) is certificate.context is not plain


def test_a_renewed_certificate_has_a_zone_of_its_own(tmp_path: Path, authority: trustme.CA) -> None:
    certificate = ClientCertificate("billing", *write(tmp_path, authority.issue_cert("client.example")))
    zone, context = certificate.zone, certificate.context
    assert (certificate.zone, certificate.context) == (zone, context)
    write(tmp_path, authority.issue_cert("client.example"))
    assert certificate.zone != zone
    assert certificate.context is not context


def test_during_a_renewal_the_old_certificate_is_used(tmp_path: Path, authority: trustme.CA) -> None:
    cert, key = write(tmp_path, authority.issue_cert("client.example"))
    certificate = ClientCertificate("billing", cert, key)
    before = certificate.zone, certificate.context
    renewed = authority.issue_cert("client.example")
    cert.write_bytes(renewed.cert_chain_pems[0].bytes())
    assert (certificate.zone, certificate.context) == before
    cert.unlink()
    assert (certificate.zone, certificate.context) == before
    write(tmp_path, renewed)
    assert certificate.zone != before[0]


def test_a_pipe_instead_of_a_certificate_does_not_block(tmp_path: Path, authority: trustme.CA) -> None:
    cert, key = write(tmp_path, authority.issue_cert("client.example"))
    certificate = ClientCertificate("billing", cert, key)
    before = certificate.zone, certificate.context
    cert.unlink()
    os.mkfifo(cert)
    assert (certificate.zone, certificate.context) == before


def test_certificate_and_key_may_be_in_one_file(tmp_path: Path, authority: trustme.CA) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(authority.issue_cert("client.example").private_key_and_cert_chain_pem.bytes())
    assert ClientCertificate("billing", both, None).zone.startswith(ROUTE_ZONE)


def test_bad_files_are_reported(tmp_path: Path, authority: trustme.CA) -> None:
    cert, key = write(tmp_path, authority.issue_cert("client.example"))
    with pytest.raises(UnusableFile, match="can't be read"):
        ClientCertificate("billing", tmp_path / "nothing", key)
    with pytest.raises(UnusableFile, match="can't be used"):
        ClientCertificate("billing", key, key)
    with pytest.raises(UnusableFile, match="can't be used: KEY_VALUES_MISMATCH"):
        key.write_bytes(authority.issue_cert("client.example").private_key_pem.bytes())
        ClientCertificate("billing", cert, key)
    with pytest.raises(UnusableFile, match="holds no certificates"):
        Contexts(key, {})
    with pytest.raises(UnusableFile, match="can't be read: it is not a regular file"):
        Contexts(tmp_path, {})


def test_an_encrypted_key_is_refused_without_asking_for_a_password(tmp_path: Path, authority: trustme.CA) -> None:
    cert, key = write(tmp_path, authority.issue_cert("client.example"))
    private = load_pem_private_key(key.read_bytes(), None)
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2"))
    key.write_bytes(locked)
    with pytest.raises(UnusableFile, match="is encrypted"):
        ClientCertificate("billing", cert, key)
