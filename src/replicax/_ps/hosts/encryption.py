"""TLS between the members of a cluster, if the environment names certificates.

`RX_TLS_CERT` and `RX_TLS_KEY` are files with a member's certificate and key; `RX_TLS_CA` is the
file with the authority that all of them are signed by. The secret says who may talk; TLS keeps
others from listening. Unix sockets and shared memory are not encrypted: they do not leave the host.
"""

from __future__ import annotations

import ssl

from replicax._core.env import tls_files
from replicax._core.errors import ClusterSpecError


def server_context() -> ssl.SSLContext | None:
    """The encryption of a listener; None without it."""
    files = _files()
    if files is None:
        return None
    cert, key, _ = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def client_context() -> ssl.SSLContext | None:
    """The encryption of a link and the certificates it accepts; None without it."""
    files = _files()
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Certificates do not name the members' addresses; membership is proved by the authority
    # and by the secret.
    context.check_hostname = False
    context.load_verify_locations(files[2])
    return context


def _files() -> tuple[str, str, str] | None:
    found = tls_files()
    if not any(found.values()):
        return None
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise ClusterSpecError(
            "TLS needs a certificate, its key, and the authority that signed it. Received: no "
            f"{' and no '.join(missing)}. Half of it would leave connections open. Set "
            "RX_TLS_CERT, RX_TLS_KEY and RX_TLS_CA for every process, or none of them."
        )
    cert, key, authority = found.values()
    return cert, key, authority
