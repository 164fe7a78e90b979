"""Certificates that openssl makes for tests, and a bearer token."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOKEN = "s3cret-token"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass
class Authority:
    """A CA and the certificates that it signs."""
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={self.folder.name}", "-keyout", self.folder / "ca.key", "-out", self.ca)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, name: str, *, expired: bool = False, at: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
        """Signs a certificate for the addresses `at`; returns certificate and key."""
        key, csr, cert = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={at}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", csr)
        if expired:
            self._sign_expired(csr, cert, extensions)
        else:
            openssl("x509", "-req", "-in", csr, "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial",
                    "-extfile", extensions, "-out", cert, "-days", "2")
        return cert, key

    def _sign_expired(self, csr: Path, cert: Path, extensions: Path) -> None:
        """Uses `openssl ca`, because `openssl x509` of version 3.0 cannot set dates."""
        database = self.folder / "ca"
        database.mkdir()
        (database / "index.txt").touch()
        (database / "serial").write_text("1000\n")
        config = self.folder / "ca.cnf"
        config.write_text(f"[ca]\ndefault_ca=d\n[d]\ndatabase={database}/index.txt\nserial={database}/serial\n"
                          f"new_certs_dir={database}\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
        openssl("ca", "-batch", "-config", config, "-in", csr, "-out", cert, "-cert", self.ca, "-keyfile",
                self.folder / "ca.key", "-startdate", "20200101000000Z", "-enddate", "20200102000000Z", "-extfile",
                extensions, "-notext")


def install(identity: tuple[Path, Path], places: tuple[Path, Path]) -> None:
    """Replaces the certificate and the key that a server reads, each atomically."""
    for source, place in zip(identity, places, strict=True):
        fresh = place.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.rename(place)


def tls_flags(cert: Path, key: Path, *more: str | Path) -> list[str]:
    return ["--tls-cert", str(cert), "--tls-key", str(key), *map(str, more)]
