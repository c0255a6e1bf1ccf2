# SPDX-License-Identifier: Apache-2.0
"""Certificates of a test's own authority, for servers and clients on 127.0.0.1."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import unittest

from nova_nodb_scheduler.testing import server_processes


class WithCertificates(unittest.TestCase):
    """Makes the certificates once for a class; skips where openssl is absent."""

    #: See :func:`make`.
    directory: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        server_processes.find_program("openssl")
        cls.directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        make(pathlib.Path(cls.directory))


def make(directory: pathlib.Path) -> None:
    """Lay down two authorities, and a certificate for both sides by the first.

    ``ca.pem`` and ``other.pem``, ``server.pem`` and ``server.key``. They say what RFC 5280
    wants of them, which Python asks for from 3.13 on.
    """

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        run(
            *("req", "-x509", *key, "-subj", f"/CN={name}", "-days", "9"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
    run("req", *key, "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr")
    (directory / "names").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    run(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-out", "server.pem", "-days", "9", "-extfile", "names"),
    )
