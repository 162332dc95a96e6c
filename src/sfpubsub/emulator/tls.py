"""TLS for `--tls`, with a certificate authority that is stored in the data directory.

The authority is created once, so that clients that trust it need no new CA file after a restart;
the server's certificate is created at every start. Only this module imports trustme, and only if
TLS is enabled.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sfpubsub.emulator.org.problems import EmulatorProblem


class Credentials(NamedTuple):
    """The key and certificate of a TLS server.

    Attributes:
        key: The private key as PEM, for gRPC.
        chain: The certificate chain as PEM, for gRPC.
        context: An SSL context with the key and the certificate chain, for HTTP.
        ca_file: PEM file of the certificate authority, for clients.
    """

    key: bytes
    chain: bytes
    context: ssl.SSLContext
    ca_file: Path


def credentials(data_dir: Path, names: Sequence[str]) -> Credentials:
    """Return credentials whose certificate covers *names*, localhost, 127.0.0.1 and ::1.

    Args:
        data_dir: The directory in which the certificate authority is stored. A new authority is
            created if none is stored.
        names: Host names and addresses of the server; 0.0.0.0 and :: are ignored.

    Raises:
        EmulatorProblem: The extra `emulator` is not installed, a name is not valid in a
            certificate, or the stored authority is damaged.
    """
    try:
        import trustme
    except ModuleNotFoundError as error:
        raise EmulatorProblem(
            "TLS needs the package trustme: pip install 'sfpubsub[emulator]'"
        ) from error
    ca_file, key_file = data_dir / "ca.pem", data_dir / "ca-key.pem"
    if ca_file.exists() and key_file.exists():
        try:
            authority = trustme.CA.from_pem(ca_file.read_bytes(), key_file.read_bytes())
        except ValueError as error:
            raise EmulatorProblem(
                f"{ca_file} or {key_file} is damaged: remove both, and start the emulator again"
            ) from error
    else:
        authority = trustme.CA(organization_name="sfpubsub emulator")
        key_file.touch(mode=0o600)
        key_file.write_bytes(authority.private_key_pem.bytes())
        # Renamed when it is complete: an authority counts as stored once this file exists.
        draft = ca_file.with_suffix(".draft")
        draft.write_bytes(authority.cert_pem.bytes())
        draft.replace(ca_file)
    good_for = {"localhost", "127.0.0.1", "::1", *(name for name in names if not _is_any(name))}
    try:
        server = authority.issue_cert(*sorted(good_for))
    except ValueError as error:  # includes UnicodeError
        raise EmulatorProblem(
            f"cannot issue a certificate for {', '.join(sorted(good_for))} ({error}): correct the"
            " host names"
        ) from error
    chain = b"".join(part.bytes() for part in server.cert_chain_pems)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # as in the service
    server.configure_cert(context)
    return Credentials(server.private_key_pem.bytes(), chain, context, ca_file)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
