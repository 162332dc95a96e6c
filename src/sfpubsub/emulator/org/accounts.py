"""The users of the org, its connected apps, and their refresh tokens. Independent of the wire
protocols.

All data is in the store, so that credentials survive a restart of the emulator. An org without
users and apps gets a default user and a default app. `signin` checks credentials and issues tokens.
Invariant: every stored public key is valid.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.rights import EVERYTHING, Rights
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

DEFAULT_USERNAME = "user@example.com"
"""The user of an org whose seed defines neither users nor apps."""

# These credentials are valid for a local emulator only.
DEFAULT_USER: dict[str, str] = {"username": DEFAULT_USERNAME, "password": "emulator-password"}
DEFAULT_APP: dict[str, str] = {
    "client_id": "emulator",
    "client_secret": "emulator-secret",
    "run_as": DEFAULT_USERNAME,
    "refresh_token": "emulator-refresh-token",
}

_REFRESH_BYTES = 48
_FAMILY_BYTES = 8


@dataclass(frozen=True)
class User:
    """A user of the org.

    Attributes:
        username: The name with which the user signs in.
        password: The password, followed by the security token if there is one; blank if the user
            cannot sign in with a password.
        active: Whether the user may sign in.
        user_id: The user's 18-character id.
        view_all: Whether the user sees the records of all users, because of View All Data.
        view_all_of: The objects of which the user sees all records, because of View All.
    """

    username: str
    password: str = field(repr=False)
    active: bool
    user_id: str
    view_all: bool = True
    view_all_of: frozenset[str] = frozenset()

    def sees_all(self, object_name: str) -> bool:
        """Return whether the user sees all records of an object."""
        return self.view_all or object_name in self.view_all_of


@dataclass(frozen=True)
class App:
    """A connected app.

    Attributes:
        client_id: The consumer key.
        client_secret: The consumer secret; blank if the app has none.
        run_as: Username for the client credentials flow; blank if that flow is off.
        public_key: PEM public key or certificate that verifies assertions of the JWT bearer flow;
            blank if that flow is off.
    """

    client_id: str
    client_secret: str = field(repr=False)
    run_as: str
    public_key: str


@dataclass(frozen=True)
class Grant:
    """What a refresh token stands for.

    Attributes:
        username: The user for whom it was issued.
        family: Identifies the tokens that descend from the same one by rotation.
        good: Whether it is valid: neither used up nor revoked.
        used_at: Time of its last use or, if it was not used, of its issue; in seconds since the
            epoch.
    """

    username: str
    family: str
    good: bool
    used_at: float


class Accounts:
    """The users and apps of one org. Thread-safe.

    Args:
        store: The org's store.
        rights: The users' permissions.
        clock: The org's clock.
    """

    def __init__(self, store: Store, rights: Rights, clock: Clock) -> None:
        self._store = store
        self._rights = rights
        self._clock = clock
        self._lock = threading.Lock()  # held while several rows change

    def fill(self) -> None:
        """Create the default user and app if the org has neither users nor apps."""
        if not self._store.rows("SELECT 1 FROM users UNION SELECT 1 FROM apps"):
            self.put_user(DEFAULT_USERNAME, DEFAULT_USER["password"])
            self.put_app(**DEFAULT_APP)

    def put_user(
        self,
        username: str,
        password: str | None = None,
        active: bool | None = None,
        view_all: bool | None = None,
    ) -> None:
        """Create a user, or change an existing one; None leaves an existing value unchanged.

        Args:
            username: The name with which the user signs in.
            password: The password, followed by the security token if there is one. A new user has
                none by default.
            active: Whether the user may sign in. True by default for a new user.
            view_all: Whether the user's profile grants View All Data, so that the user sees records
                that other users own. True by default for a new user.
        """
        with self._lock, self._store.transaction():
            made = int(self._store.meta("users_made", "0"))
            self._store.run(
                "INSERT INTO users VALUES (?, coalesce(?, ''), coalesce(?, 1), ?)"
                " ON CONFLICT (username) DO UPDATE SET"
                " password = coalesce(?, password), active = coalesce(?, active)",
                *(username, password, active, made + 1),
                *(password, active),
            )
            (newest,) = self._store.rows("SELECT max(number) FROM users")[0]
            self._store.set_meta("users_made", str(max(made, newest)))
            self._rights.set_profile(username, view_all)

    def put_app(
        self,
        client_id: str,
        client_secret: str | None = None,
        run_as: str | None = None,
        refresh_token: str | None = None,
        public_key: str | None = None,
    ) -> None:
        """Create an app, or change an existing one; None leaves an existing value unchanged.

        Args:
            client_id: The consumer key.
            client_secret: The consumer secret; blank if the app has none.
            run_as: Username for the client credentials flow; blank switches that flow off.
            refresh_token: A refresh token for *run_as*. A token that was used up or revoked stays
                invalid.
            public_key: PEM public key or certificate that verifies assertions of the JWT bearer
                flow; blank switches that flow off.

        Raises:
            EmulatorProblem: The public key is not valid, or the extra `emulator` is not installed.
        """
        if public_key:
            check_public_key(public_key)
        with self._lock, self._store.transaction():
            self._store.run(
                "INSERT INTO apps VALUES (?, coalesce(?, ''), coalesce(?, ''), coalesce(?, ''))"
                " ON CONFLICT (client_id) DO UPDATE SET"
                " client_secret = coalesce(?, client_secret), run_as = coalesce(?, run_as),"
                " public_key = coalesce(?, public_key)",
                *(client_id, client_secret, run_as, public_key),
                *(client_secret, run_as, public_key),
            )
            if refresh_token:
                self._store.run(
                    "INSERT OR IGNORE INTO refresh_tokens"
                    " SELECT ?, client_id, run_as, ?, ?, 1 FROM apps WHERE client_id = ?",
                    *(refresh_token, secrets.token_hex(_FAMILY_BYTES), self._clock.now()),
                    client_id,
                )

    def by_id(self, record_id: str) -> User | None:
        """Return the user with this 18-character id, or None if it does not exist."""
        for name, password, active, number in self._store.rows(
            "SELECT username, password, active, number FROM users"
        ):
            if user_id(number) == record_id:
                return self._user(name, password, active, number)
        return None

    def _user(self, name: str, password: str, active: int, number: int) -> User:
        grants = self._rights.grants(name)
        objects = grants - {EVERYTHING}
        return User(name, password, bool(active), user_id(number), EVERYTHING in grants, objects)

    def user(self, username: str) -> User | None:
        """Return the user with this username, or None if it does not exist. Usernames are
        case-insensitive, as in an org.
        """
        rows = self._store.rows(
            "SELECT username, password, active, number FROM users"
            " WHERE username = ? COLLATE NOCASE",
            username,
        )
        if not rows:
            return None
        return self._user(*rows[0])

    def holder(self, username: str) -> User:
        """Return the user to whom a token was issued.

        Args:
            username: The username of the token; blank for the emulator's own tokens.

        Returns:
            The user with this name; for a blank name, the org's first user. If there is no such
            user, a placeholder with the default username.
        """
        rows = self._store.rows("SELECT username FROM users ORDER BY number LIMIT 1")
        found = self.user(username or (rows[0][0] if rows else ""))
        return found or User(DEFAULT_USERNAME, "", True, user_id(1))

    def app(self, client_id: str) -> App | None:
        """Return the app with this client id, or None if it does not exist."""
        rows = self._store.rows("SELECT * FROM apps WHERE client_id = ?", client_id)
        return App(*rows[0]) if rows else None

    # Refresh tokens.

    def grant_of(self, token: str, client_id: str) -> Grant | None:
        """Return what a refresh token of an app stands for; None if it is unknown."""
        rows = self._store.rows(
            "SELECT username, family, good, used_at FROM refresh_tokens"
            " WHERE token = ? AND client_id = ?",
            token,
            client_id,
        )
        for username, family, good, used_at in rows:
            return Grant(username, family, bool(good), used_at)
        return None

    def refresh_tokens(self, family: str) -> dict[str, bool]:
        """Return the refresh tokens of a family, each with whether it is valid."""
        return {
            token: bool(good)
            for token, good in self._store.rows(
                "SELECT token, good FROM refresh_tokens WHERE family = ?", family
            )
        }

    def end_refresh_token(self, token: str) -> str:
        """Revoke a refresh token.

        Returns:
            Its family; blank if the token was not valid.
        """
        with self._lock:
            rows = self._store.rows(
                "SELECT family FROM refresh_tokens WHERE token = ? AND good", token
            )
            self._store.run("UPDATE refresh_tokens SET good = 0 WHERE token = ?", token)
            return str(rows[0][0]) if rows else ""

    def end_family(self, family: str) -> None:
        """Revoke all refresh tokens of a family."""
        self._store.run("UPDATE refresh_tokens SET good = 0 WHERE family = ?", family)

    def use(self, token: str, client_id: str, *, rotate: bool) -> str | None:
        """Use a refresh token.

        Args:
            token: The token.
            client_id: Its app.
            rotate: Whether the token becomes invalid, and a new one of the family takes its place.

        Returns:
            The refresh token to use next; None if this one is not valid.
        """
        now = self._clock.now()
        with self._lock, self._store.transaction():
            grant = self.grant_of(token, client_id)
            if grant is None or not grant.good:
                return None
            self._store.run(
                "UPDATE refresh_tokens SET good = ?, used_at = ? WHERE token = ?",
                *(not rotate, now, token),
            )
            if not rotate:
                return token
            new = secrets.token_urlsafe(_REFRESH_BYTES)
            self._store.run(
                "INSERT INTO refresh_tokens VALUES (?, ?, ?, ?, ?, 1)",
                *(new, client_id, grant.username, grant.family, now),
            )
            return new


def user_id(number: int) -> str:
    """Return the 18-character id of the user with this number in the store."""
    return eighteen(f"005SB{number:010d}")


def check_public_key(text: str) -> None:
    """Check that a PEM public key or certificate can verify assertions.

    Raises:
        EmulatorProblem: The text does not contain an RSA public key, or the extra `emulator` is not
            installed.
    """
    try:
        read_public_key(text)
    except ValueError as error:
        raise EmulatorProblem(
            "the public key is not an RSA key in PEM format: use the text that begins with"
            " -----BEGIN PUBLIC KEY----- or -----BEGIN CERTIFICATE-----"
        ) from error


def read_public_key(text: str) -> Any:
    """Return the RSA public key in a PEM public key or certificate.

    Raises:
        ValueError: The text does not contain an RSA public key.
        EmulatorProblem: The extra `emulator` is not installed.
    """
    try:
        import jwt  # noqa: F401 - report a missing package now, not at the first sign-in
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ModuleNotFoundError as error:
        raise EmulatorProblem(
            "the JWT bearer flow needs the packages PyJWT and cryptography:"
            " pip install 'sfpubsub[emulator]'"
        ) from error
    data = text.encode()
    if "BEGIN CERTIFICATE" in text:
        key: object = x509.load_pem_x509_certificate(data).public_key()
    else:
        key = load_pem_public_key(data)
    if not isinstance(key, RSAPublicKey):
        raise ValueError("the key is not an RSA public key")  # noqa: TRY004 - the input is invalid
    return key
