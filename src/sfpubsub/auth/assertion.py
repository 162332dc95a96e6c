"""Signed assertions for the JWT bearer flow. This is the only module that imports PyJWT."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from sfpubsub.config.sources import warn_if_readable_by_others
from sfpubsub.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

# Lifetime of an assertion, in seconds. Salesforce documents both 3 and 5 minutes as the maximum;
# staying below the shorter one allows for a local clock that is slightly fast.
LIFETIME = 170.0

# The authorisation server that ``aud`` must name, by the suffix of the login host. Salesforce
# documentation names these two; an Experience Cloud site uses its own URL.
AUDIENCES = (
    (".sandbox.my.salesforce.com", "https://test.salesforce.com"),
    (".my.salesforce.com", "https://login.salesforce.com"),
)

# Markers of a public key or certificate instead of a private key: a PEM public key, OpenSSH's
# format, and the certificate that is uploaded to the connected app.
_PUBLIC = (b"PUBLIC KEY-----", b"ssh-rsa ", b"BEGIN CERTIFICATE-----")


def make_assertion(client_id: str, username: str, audience: str, private_key_file: str) -> str:
    """Return a signed assertion that lets the app sign in as *username*.

    Args:
        client_id: Consumer key of the app.
        username: User to sign in as.
        audience: The ``aud`` claim: URL of the authorization server.
        private_key_file: Path of the PEM file with the RSA private key.

    Raises:
        MissingExtraError: PyJWT or its signing library is not installed.
        ConfigurationError: The key file cannot be read, or contains no usable RSA private key.
    """
    try:
        import cryptography.hazmat.primitives.asymmetric.rsa  # noqa: F401  # what RS256 needs
        import jwt
    except ImportError as error:
        raise MissingExtraError("signing in with a JWT", "jwt") from error
    path = Path(private_key_file).expanduser()
    try:
        key = path.read_bytes()
        warn_if_readable_by_others(path)
    except OSError as error:
        raise ConfigurationError(f"the private key file {path} cannot be read: {error}") from error
    expires = int(time.time() + LIFETIME)
    claims = {"iss": client_id, "sub": username, "aud": audience, "exp": expires}
    private, problem = _private_key(key)
    if private is not None:
        try:
            return jwt.encode(claims, private, algorithm="RS256")
        except (ValueError, jwt.PyJWTError):
            problem = "contains an RSA key that cannot sign: create a key of 2,048 bits"
    # Outside the except block, so not chained: the libraries' errors may contain the key.
    raise ConfigurationError(f"the private key file {path} {problem}")


def _private_key(pem: bytes) -> tuple[RSAPrivateKey | None, str]:
    """Return the key and an empty string, or None and a phrase that describes the problem."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None)
    except TypeError:  # raised by cryptography if a passphrase is required
        return None, "is encrypted: store it without a passphrase, readable only by its owner"
    except (ValueError, UnsupportedAlgorithm):
        if any(mark in pem for mark in _PUBLIC):
            return None, "contains a public key or certificate: name the file with the private key"
        return None, "does not contain an RSA private key in PEM form: name a file with such a key"
    if not isinstance(key, RSAPrivateKey):
        return None, "contains a private key that is not RSA: use an RSA key, as RS256 requires"
    return key, ""
