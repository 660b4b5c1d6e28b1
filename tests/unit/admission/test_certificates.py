"""Certificates that the webhook makes: trusted by what the API server is told, and judged right."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dra_driver.admission.certificates import (
    Pair,
    context_for,
    expiry,
    make_pair,
    now,
    problem,
)
from tests.unit.admission.handshake import NAME, shown_by

DAY = timedelta(days=1)
NAMES = (NAME,)
NOW = now()
PAIR = make_pair(NAMES, 30 * DAY, NOW)
OTHER = make_pair(NAMES, 30 * DAY, NOW)


def authorities(pair: Pair) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pair.authorities)


def test_a_client_that_trusts_the_authority_accepts_it() -> None:
    certificate = x509.load_pem_x509_certificate(PAIR.certificate)
    assert shown_by(PAIR) == certificate.public_bytes(serialization.Encoding.DER)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shown_by(PAIR, name="other.gpu-dra-driver.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shown_by(PAIR, OTHER.authorities)


def test_it_holds_from_an_hour_ago_for_its_lifetime() -> None:
    certificate = x509.load_pem_x509_certificate(PAIR.certificate)
    (authority,) = authorities(PAIR)
    for each in (certificate, authority):
        assert each.not_valid_before_utc == (NOW - timedelta(hours=1)).replace(microsecond=0)
        assert each.not_valid_after_utc == (NOW + 30 * DAY).replace(microsecond=0)
    assert expiry(PAIR.certificate) == certificate.not_valid_after_utc


def test_the_key_of_the_authority_is_kept_nowhere() -> None:
    (authority,) = authorities(PAIR)
    key = serialization.load_pem_private_key(PAIR.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() != authority.public_key()
    assert PAIR.key.count(b"PRIVATE KEY") == 2
    assert b"PRIVATE" not in PAIR.certificate + PAIR.authorities


def test_former_authorities_stay_while_they_hold() -> None:
    first = make_pair(NAMES, 30 * DAY, NOW - 20 * DAY)
    second = make_pair(NAMES, 30 * DAY, NOW, first.authorities)
    assert authorities(second)[1:] == authorities(first)
    shown_by(first, second.authorities)
    shown_by(second)
    third = make_pair(NAMES, 30 * DAY, NOW + 20 * DAY, second.authorities)
    assert authorities(third)[1:] == authorities(second)[:1]


def test_a_bundle_does_not_grow_for_ever() -> None:
    pair = PAIR
    for _ in range(9):
        pair = make_pair(NAMES, 30 * DAY, NOW, pair.authorities)
    assert len(authorities(pair)) == 4


def test_authorities_that_are_damaged_are_left_out() -> None:
    pair = make_pair(NAMES, DAY, NOW, b"-----BEGIN CERTIFICATE-----\nxx\n")
    assert len(authorities(pair)) == 1


def test_a_good_pair_has_no_problem_until_a_third_of_its_time_is_left() -> None:
    assert problem(PAIR, NAMES, NOW) == ""
    assert problem(PAIR, NAMES, NOW + 20 * DAY - timedelta(minutes=1)) == ""
    assert problem(PAIR, NAMES, NOW + 20 * DAY + timedelta(minutes=1)).startswith("it ends 20")
    assert problem(PAIR, NAMES, NOW + 31 * DAY).startswith("it ends 20")
    short = make_pair(NAMES, timedelta(seconds=30), NOW)
    assert problem(short, NAMES, NOW + timedelta(seconds=10)) == ""
    assert problem(short, NAMES, NOW + timedelta(seconds=21)).startswith("it ends 20")


@pytest.mark.parametrize(
    ("pair", "names", "words"),
    [
        (Pair(b"", PAIR.key, PAIR.authorities), NAMES, "it is damaged: "),
        (Pair(PAIR.certificate, b"", PAIR.authorities), NAMES, "it is damaged: "),
        (Pair(PAIR.certificate, OTHER.key, PAIR.authorities), NAMES, "KEY_VALUES_MISMATCH"),
        (Pair(PAIR.certificate, PAIR.key, b""), NAMES, "no authority beside it vouches for it"),
        (Pair(PAIR.certificate, PAIR.key, OTHER.authorities), NAMES, "no authority beside it vo"),
        (Pair(PAIR.certificate, PAIR.key, b"-----BEGIN CERTIFICATE-----"), NAMES, "is damaged: "),
        (Pair(b"\x00\xff", b"\x00", b"\x00"), NAMES, "it is damaged: "),
        (PAIR, ("other.svc", NAME), f"it is not for other.svc, {NAME}"),
        (Pair(PAIR.authorities, PAIR.key, PAIR.authorities), NAMES, "it is damaged: "),
    ],
)
def test_why_a_pair_can_not_serve_is_said(pair: Pair, names: tuple[str, ...], words: str) -> None:
    assert words in problem(pair, names, NOW)


def test_an_encrypted_key_is_refused_and_asks_nobody() -> None:
    key = serialization.load_pem_private_key(PAIR.key, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    with pytest.raises(ValueError, match="certificate and key can't be used: "):
        context_for(PAIR.certificate, encrypted)


def test_no_descriptor_is_left_open() -> None:
    folder = Path("/proc/self/fd")
    before = len(list(folder.iterdir()))
    for _ in range(3):
        context_for(PAIR.certificate, PAIR.key)
        with pytest.raises(ValueError, match="can't be used"):
            context_for(PAIR.certificate, OTHER.key)
    assert len(list(folder.iterdir())) == before
