"""The cluster's certificate authority and what it signs, made with the openssl program."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cache import HarnessError
from tests.cluster.sandbox import NODE_ADDRESS, SERVICE_ADDRESS

_DAYS = "30"
_CURVE = "ec_paramgen_curve:P-256"
_SERVER_NAMES = (
    f"IP:127.0.0.1,IP:{NODE_ADDRESS},IP:{SERVICE_ADDRESS},DNS:localhost,DNS:kubernetes,"
    "DNS:kubernetes.default,DNS:kubernetes.default.svc"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates; all files lie in one folder."""

    folder: Path
    openssl: Path

    @property
    def certificate(self) -> Path:
        """The authority's own certificate, which all clients trust."""
        return self.folder / "ca.crt"

    def create(self) -> None:
        """Make the authority and the key pair that signs ServiceAccount tokens."""
        self.folder.mkdir(mode=0o700)
        self._run("req", "-x509", *self._new_key("ca"), "-out", "ca.crt", "-days", _DAYS,
                  "-subj", "/CN=cluster-test-ca")  # fmt: skip
        self._run("genpkey", "-algorithm", "EC", "-pkeyopt", _CURVE, "-out", "tokens.key")
        self._run("pkey", "-in", "tokens.key", "-pubout", "-out", "tokens.pub")

    def client(self, name: str, user: str, group: str) -> Identity:
        """Issue a client certificate for a user of one group."""
        return self._issue(name, f"/O={group}/CN={user}", "extendedKeyUsage=clientAuth")

    def server(self, name: str) -> Identity:
        """Issue a certificate for a server on any of the sandbox's addresses."""
        extensions = f"extendedKeyUsage=serverAuth\nsubjectAltName={_SERVER_NAMES}"
        return self._issue(name, f"/CN={name}", extensions)

    def _issue(self, name: str, subject: str, extensions: str) -> Identity:
        (self.folder / f"{name}.ext").write_text(extensions + "\n")
        request = ("req", "-new", *self._new_key(name), "-subj", subject, "-out", f"{name}.csr")
        self._run(*request)
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                  "-CAcreateserial", "-days", _DAYS, "-extfile", f"{name}.ext",
                  "-out", f"{name}.crt")  # fmt: skip
        return Identity(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    def _new_key(self, name: str) -> tuple[str, ...]:
        return ("-newkey", "ec", "-pkeyopt", _CURVE, "-nodes", "-keyout", f"{name}.key")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [self.openssl, *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise HarnessError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
