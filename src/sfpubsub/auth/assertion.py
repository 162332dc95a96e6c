"""The signed assertion of the JWT bearer flow; the only module that knows PyJWT."""

from __future__ import annotations

import time
from pathlib import Path

from sfpubsub.config.places import warn_if_readable_by_others
from sfpubsub.errors import ConfigurationError, MissingExtraError

# How long an assertion is good, in seconds. The service's bound is told as 3 and as 5 minutes; less
# than the shorter leaves room for a clock that is ahead.
LIFETIME = 170.0

# By the end of a login host: the authorisation server that has to stand in ``aud``. Salesforce
# documentation names these two, and the URL of an Experience Cloud site for such a site.
AUDIENCES = (
    (".sandbox.my.salesforce.com", "https://test.salesforce.com"),
    (".my.salesforce.com", "https://login.salesforce.com"),
)


def make_assertion(client_id: str, username: str, audience: str, private_key_file: str) -> str:
    """Return a signed assertion that *username* allows the app to sign in.

    Raises:
        MissingExtraError: PyJWT or what it signs with is not installed.
        ConfigurationError: The key file cannot be read, or holds no RSA key that can be.
    """
    try:
        import cryptography.hazmat.primitives.asymmetric.rsa  # noqa: F401  # what RS256 needs
        import jwt
    except ImportError as error:
        raise MissingExtraError("signing in by JWT", "jwt") from error
    path = Path(private_key_file).expanduser()
    try:
        key = path.read_bytes()
        warn_if_readable_by_others(path)
    except OSError as error:
        raise ConfigurationError(f"the private key file {path} cannot be read: {error}") from error
    expires = int(time.time() + LIFETIME)
    claims = {"iss": client_id, "sub": username, "aud": audience, "exp": expires}
    problem = "is encrypted: write it without a pass phrase, readable by its owner only"
    try:
        return jwt.encode(claims, key, algorithm="RS256")
    except TypeError:  # the word of cryptography for a pass phrase that is missing
        pass
    except (ValueError, jwt.PyJWTError):
        problem = "holds no RSA private key in PEM form"
    # Outside the block and not chained: those errors may have the key with them.
    raise ConfigurationError(f"the private key file {path} {problem}")
