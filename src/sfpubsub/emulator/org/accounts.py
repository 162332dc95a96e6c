"""Who can sign in: the users of the org, its connected apps, and their refresh tokens. No wire.

Everything lives in the store, so that a restarted emulator knows the credentials of the one before.
An org without users and apps has the default ones. Which of them gets a token is decided in signin.
Invariant: a public key that is stored can be read.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

DEFAULT_USERNAME = "user@example.com"
"""The user of an org whose seed names neither users nor apps."""

# They open a local emulator and nothing else.
DEFAULT_USER: dict[str, str] = {"username": DEFAULT_USERNAME, "password": "emulator-password"}
DEFAULT_APP: dict[str, str] = {
    "client_id": "emulator",
    "client_secret": "emulator-secret",
    "run_as": DEFAULT_USERNAME,
    "refresh_token": "emulator-refresh-token",
}

_REFRESH_BYTES = 48


@dataclass(frozen=True)
class User:
    """A user.

    Attributes:
        password: With the security token after it, if there is one; blank for none.
        active: Whether the user may sign in.
        user_id: 18 characters.
        view_all: Whether the user sees the records of others.
    """

    username: str
    password: str = field(repr=False)
    active: bool
    user_id: str
    view_all: bool = True


@dataclass(frozen=True)
class App:
    """A connected app.

    Attributes:
        client_id: Its consumer key.
        client_secret: Blank for none.
        run_as: User of the client credentials flow; blank if that flow is off.
        public_key: PEM that verifies assertions of the JWT bearer flow; blank if that flow is off.
    """

    client_id: str
    client_secret: str = field(repr=False)
    run_as: str
    public_key: str


class Accounts:
    """The users and apps of one org. Thread-safe.

    Args:
        store: Where they live.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # held over a change of several rows

    def fill(self) -> None:
        """Give an org that nobody can sign in to the default user and app."""
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
        """Make a user, or change one; what is None stays as it is."""
        with self._lock, self._store.transaction():
            (made,) = self._store.rows("SELECT coalesce(max(number), 0) FROM users")
            self._store.run(
                "INSERT INTO users VALUES (?1, coalesce(?2, ''), coalesce(?3, 1), ?4)"
                " ON CONFLICT (username) DO UPDATE SET"
                " password = coalesce(?2, password), active = coalesce(?3, active)",
                username,
                password,
                active,
                made[0] + 1,
            )
            if view_all is not None:
                self._store.run("DELETE FROM limited_users WHERE username = ?", username)
            if view_all is False:
                self._store.run("INSERT INTO limited_users VALUES (?)", username)

    def put_app(
        self,
        client_id: str,
        client_secret: str | None = None,
        run_as: str | None = None,
        refresh_token: str | None = None,
        public_key: str | None = None,
    ) -> None:
        """Make an app, or change one; what is None stays as it is.

        Args:
            client_id: As of `App`, as are the others but for one.
            client_secret: As of `App`.
            run_as: As of `App`.
            public_key: As of `App`.
            refresh_token: One that signs in `run_as`. One that was used up or revoked stays so.

        Raises:
            EmulatorProblem: The public key cannot be read, or the extra is not installed.
        """
        if public_key:
            check_public_key(public_key)
        with self._lock, self._store.transaction():
            self._store.run(
                "INSERT INTO apps VALUES (?1, coalesce(?2, ''), coalesce(?3, ''), coalesce(?4, ''))"
                " ON CONFLICT (client_id) DO UPDATE SET"
                " client_secret = coalesce(?2, client_secret), run_as = coalesce(?3, run_as),"
                " public_key = coalesce(?4, public_key)",
                client_id,
                client_secret,
                run_as,
                public_key,
            )
            if refresh_token:
                self._store.run(
                    "INSERT OR IGNORE INTO refresh_tokens"
                    " SELECT ?1, client_id, run_as, 1 FROM apps WHERE client_id = ?2",
                    refresh_token,
                    client_id,
                )

    def by_id(self, record_id: str) -> User | None:
        """The user of an id of 18 characters."""
        for name, password, active, number in self._store.rows(
            "SELECT username, password, active, number FROM users"
        ):
            if user_id(number) == record_id:
                return User(name, password, bool(active), record_id, self._sees_all(name))
        return None

    def _sees_all(self, username: str) -> bool:
        rows = self._store.rows("SELECT 1 FROM limited_users WHERE username = ?", username)
        return not rows

    def user(self, username: str) -> User | None:
        """The user of that name; upper and lower case are the same, as in an org."""
        rows = self._store.rows(
            "SELECT username, password, active, number FROM users"
            " WHERE username = ? COLLATE NOCASE",
            username,
        )
        if not rows:
            return None
        name, password, active, number = rows[0]
        return User(name, password, bool(active), user_id(number), self._sees_all(name))

    def holder(self, username: str) -> User:
        """Whose token it is: a user, or the first one for the emulator's own tokens."""
        rows = self._store.rows("SELECT username FROM users ORDER BY number LIMIT 1")
        found = self.user(username or (rows[0][0] if rows else ""))
        return found or User(DEFAULT_USERNAME, "", True, user_id(1))

    def app(self, client_id: str) -> App | None:
        """The app of that client id."""
        rows = self._store.rows("SELECT * FROM apps WHERE client_id = ?", client_id)
        return App(*rows[0]) if rows else None

    # Refresh tokens.

    def refresh_user(self, token: str, client_id: str) -> str | None:
        """Whom a good refresh token of an app signs in; None if it is not good."""
        rows = self._store.rows(
            "SELECT username FROM refresh_tokens WHERE token = ? AND client_id = ? AND good",
            token,
            client_id,
        )
        return str(rows[0][0]) if rows else None

    def end_refresh_token(self, token: str) -> bool:
        """Revoke a refresh token.

        Returns:
            Whether it was good.
        """
        with self._lock:
            good = self._store.rows("SELECT 1 FROM refresh_tokens WHERE token = ? AND good", token)
            self._store.run("UPDATE refresh_tokens SET good = 0 WHERE token = ?", token)
            return bool(good)

    def rotate(self, token: str, client_id: str) -> str | None:
        """Use a refresh token up and get the next; None if it was not good."""
        new = secrets.token_urlsafe(_REFRESH_BYTES)
        with self._lock, self._store.transaction():
            username = self.refresh_user(token, client_id)
            if username is None:
                return None
            self._store.run("DELETE FROM refresh_tokens WHERE token = ?", token)
            self._store.run(
                "INSERT INTO refresh_tokens VALUES (?, ?, ?, 0)", token, client_id, username
            )
            self._store.run(
                "INSERT INTO refresh_tokens VALUES (?, ?, ?, 1)", new, client_id, username
            )
        return new


def user_id(number: int) -> str:
    """The id of the user of that number."""
    return eighteen(f"005SB{number:010d}")


def check_public_key(text: str) -> None:
    """Pass only if assertions can be verified with a PEM public key or certificate.

    Raises:
        EmulatorProblem: They cannot.
    """
    try:
        read_public_key(text)
    except ValueError as error:
        raise EmulatorProblem(
            "the public key is no RSA key in PEM: give the text that begins with"
            " -----BEGIN PUBLIC KEY----- or -----BEGIN CERTIFICATE-----"
        ) from error


def read_public_key(text: str) -> Any:
    """The RSA key of a PEM public key or certificate.

    Raises:
        ValueError: The text holds no such key.
        EmulatorProblem: The extra is not installed.
    """
    try:
        import jwt  # noqa: F401 - asked for here, so that nobody misses it at a sign-in
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
        raise ValueError("not an RSA key")  # noqa: TRY004 - a value from outside
    return key
