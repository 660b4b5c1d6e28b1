"""Certificates in files that somebody else replaces, as kubelets do: by a symlink."""

import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dra_driver.admission.certificates import Pair, make_pair, now
from dra_driver.admission.from_files import CertificateFiles
from dra_driver.admission.metrics import CATALOGUE
from dra_driver.admission.served import Served
from dra_driver.model.errors import SettingInvalid, TryAgain
from dra_driver.telemetry import Metrics
from tests.support.api import wait_for
from tests.unit.admission.handshake import NAME, shown

DAY = timedelta(days=1)
FIRST, SECOND = (make_pair((NAME,), DAY, now()) for _ in range(2))


def of_version_2(certificate: bytes) -> bytes:
    """Make it one that OpenSSL takes and the library that reads it does not."""
    content = ssl.PEM_cert_to_DER_cert(certificate.decode())
    version_3 = b"\xa0\x03\x02\x01\x02"
    assert content.count(version_3) == 1
    return ssl.DER_cert_to_PEM_cert(content.replace(version_3, b"\xa0\x03\x02\x01\x01")).encode()


ODD = of_version_2(FIRST.certificate)


class Mounted:
    """A folder as the kubelet mounts a Secret."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = Metrics(CATALOGUE)
        self.served = Served(self.metrics)
        files = (folder / "tls.crt", folder / "tls.key")
        for file in files:
            file.symlink_to(Path("..data") / file.name)
        self.files = CertificateFiles(*files, self.served)

    def hold(self, certificate: bytes, key: bytes) -> None:
        version = self.folder / f"..{len(list(self.folder.iterdir()))}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        link = self.folder / "..new"
        link.symlink_to(version.name)
        link.replace(self.folder / "..data")

    def shows(self, pair: Pair) -> bool:
        try:
            shown(self.served.context(), pair.authorities)
        except OSError:
            return False
        return True

    def errors(self) -> float:
        value = self.metrics.registry.get_sample_value(
            "gpu_dra_driver_certificate_changes_total", {"result": "error"}
        )
        assert value is not None
        return value


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
    monkeypatch.setattr("dra_driver.admission.from_files._SECONDS", 0.02)
    mounted = Mounted(tmp_path)
    yield mounted
    mounted.files.stop()


def test_what_the_files_have_is_shown_and_followed(mounted: Mounted) -> None:
    with pytest.raises(TryAgain, match="there is no certificate yet"):
        mounted.served.context()
    assert mounted.served.reasons() == ["there is no certificate yet"]
    mounted.hold(FIRST.certificate, FIRST.key)
    mounted.files.start()
    assert mounted.shows(FIRST)
    assert mounted.served.reasons() == []
    mounted.hold(SECOND.certificate, SECOND.key)
    wait_for(lambda: mounted.shows(SECOND), "the new certificate is shown")
    assert not mounted.shows(FIRST)
    assert mounted.errors() == 0


@pytest.mark.parametrize(
    "content",
    [
        (b"", b""),
        (b"junk", b"junk"),
        (SECOND.certificate, FIRST.key),
        (SECOND.certificate, b""),
        (ODD, FIRST.key),
    ],
)
def test_what_can_not_be_used_leaves_the_former_in_use(
    mounted: Mounted, content: tuple[bytes, bytes]
) -> None:
    mounted.hold(FIRST.certificate, FIRST.key)
    mounted.files.start()
    mounted.hold(*content)
    wait_for(lambda: mounted.errors() > 2, "the trouble is noticed")
    assert mounted.shows(FIRST)
    assert mounted.served.reasons() == []
    mounted.hold(SECOND.certificate, SECOND.key)
    wait_for(lambda: mounted.shows(SECOND), "the next certificate is shown")


def test_files_that_go_away_leave_it_in_use(mounted: Mounted) -> None:
    mounted.hold(FIRST.certificate, FIRST.key)
    mounted.files.start()
    (mounted.folder / "..data").unlink()
    wait_for(lambda: mounted.errors() > 2, "the trouble is noticed")
    assert mounted.shows(FIRST)


def test_a_start_without_files_says_which(mounted: Mounted) -> None:
    with pytest.raises(SettingInvalid, match=r"--tls-cert-file /.*tls.crt, --tls-private-key-file"):
        mounted.files.start()
    mounted.hold(FIRST.certificate, SECOND.key)
    with pytest.raises(SettingInvalid, match="certificate and key can't be used: KEY_VALUES_MIS"):
        mounted.files.start()


def test_a_certificate_that_has_ended_is_a_reason_not_to_be_ready(mounted: Mounted) -> None:
    ended = make_pair((NAME,), DAY, now() - 2 * DAY)
    mounted.hold(ended.certificate, ended.key)
    mounted.files.start()
    (reason,) = mounted.served.reasons()
    assert reason.startswith("the certificate has ended 20")
    mounted.hold(FIRST.certificate, FIRST.key)
    wait_for(lambda: mounted.served.reasons() == [], "it is ready")
    ends = mounted.metrics.registry.get_sample_value(
        "gpu_dra_driver_certificate_expiry_timestamp_seconds"
    )
    assert ends is not None
    assert abs(ends - (now() + DAY).timestamp()) < 600
