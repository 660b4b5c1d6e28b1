"""Certificates by which the API server knows this webhook: made, judged, and made ready for TLS.

Each serving certificate has an authority of its own, whose key is forgotten as soon as it has
signed: nobody can ever sign a second certificate with it.
"""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCKS_DIFFER: Final = timedelta(hours=1)  # the API server's may be behind ours
_NAME: Final = "gpu-dra-driver webhook"
_MOST_EARLIER: Final = 3  # authorities that are kept


@dataclass(frozen=True, slots=True)
class Pair:
    """A serving certificate with its key, and the authorities that vouch for it; all PEM.

    Among the authorities are those of earlier certificates that still hold: other instances may
    not have changed theirs yet.
    """

    certificate: bytes
    key: bytes
    authorities: bytes


def make_pair(
    names: Sequence[str], lifetime: timedelta, now: datetime, earlier: bytes = b""
) -> Pair:
    """Make a certificate for these DNS names; `earlier` are authorities of former ones."""
    authority_key, key = _new_key(), _new_key()
    begin, end = now - _CLOCKS_DIFFER, now + lifetime
    serial = x509.random_serial_number()
    issuer = _called(f"{_NAME} authority {serial:x}"[:64])
    authority = (
        _begun(issuer, issuer, authority_key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _begun(_called(_NAME), issuer, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authorities = b"".join(
        each.public_bytes(pem) for each in (authority, *_still_valid(earlier, now))
    )
    return Pair(certificate.public_bytes(pem), private, authorities)


def problem(pair: Pair, names: Sequence[str], now: datetime) -> str:
    """Say why such a pair can't serve these names, or should be replaced; empty if it is fine.

    A certificate is replaced when a third of its time is left.
    """
    try:
        certificate = _read(pair.certificate)
        context_for(pair.certificate, pair.key)
        authorities = _read_all(pair.authorities)
        has = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        return f"it is damaged: {error}"
    if not any(_vouches(each, certificate) for each in authorities):
        return "no authority beside it vouches for it"
    if not set(names) <= set(has.get_values_for_type(x509.DNSName)):
        return f"it is not for {', '.join(names)}"
    end = certificate.not_valid_after_utc
    lifetime = end - certificate.not_valid_before_utc - _CLOCKS_DIFFER
    if now >= end - lifetime / 3:
        return f"it ends {end.isoformat()}"
    return ""


def expiry(certificate: bytes) -> datetime:
    """When a certificate ends; raises ValueError when it is none."""
    return _read(certificate).not_valid_after_utc


def context_for(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Make what TLS connections show; raises ValueError when the two don't belong together.

    The library reads files only: these are in memory, so that the key is on no disk.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{memory}", password="")  # else it asks a terminal
    except ssl.SSLError as error:
        raise ValueError(f"certificate and key can't be used: {error.reason}") from error
    finally:
        os.close(memory)
    return context


def now() -> datetime:
    """Give the time, as certificates know it."""
    return datetime.now(tz=UTC)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read(certificate: bytes) -> x509.Certificate:
    found = _read_all(certificate)
    if not found:
        raise ValueError("there is no certificate")
    return found[0]


def _read_all(certificates: bytes) -> list[x509.Certificate]:
    """Read none or more; raises ValueError."""
    try:
        return x509.load_pem_x509_certificates(certificates) if certificates.strip() else []
    except x509.InvalidVersion as error:  # TLS takes more versions than this library
        raise ValueError(str(error)) from error


def _still_valid(authorities: bytes, now: datetime) -> list[x509.Certificate]:
    try:
        found = _read_all(authorities)
    except ValueError:
        return []
    return [each for each in found if each.not_valid_after_utc > now][:_MOST_EARLIER]


def _vouches(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - wrong name, key or signature, each with its own error
        return False
    return True
