"""Tests that sessions are complete, kept secret, and renewed only once."""

from __future__ import annotations

import pickle
import threading
import traceback

import pytest

from sfpubsub.auth.session import CurrentSession, Session, StaticSession
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    OtherOrgError,
    SessionExpiredError,
)

from ..conftest import PATIENCE, until

SECRET = "00D000000000001!AQ0AQ.secret"


def session(token: str = SECRET) -> Session:
    """Return a session with *token* for an example instance."""
    return Session(token, "https://example.my.salesforce.com/", "00D000000000001AAA")


def test_a_session_has_the_three_headers():
    """The names of the three authentication headers are in lower case, and the instance URL has no
    trailing slash.
    """
    assert session().headers == (
        ("accesstoken", SECRET),
        ("instanceurl", "https://example.my.salesforce.com"),
        ("tenantid", "00D000000000001AAA"),
    )


def test_the_tenant_can_be_read_from_the_token():
    """A token begins with the 15-character org id; its 18-character form is the tenant id."""
    assert Session(SECRET, "https://x").tenant_id == "00D000000000001EAA"


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (("", "https://x", "t"), "SFPUBSUB_ACCESS_TOKEN"),
        (("t", "", "t"), "SFPUBSUB_INSTANCE_URL"),
        (("no-org-in-it", "https://x", ""), "SFPUBSUB_TENANT_ID"),
    ],
)
def test_a_missing_part_names_the_variable_to_set(parts, names):
    """A session without a token, instance or tenant raises an error that names the environment
    variable.
    """
    with pytest.raises(ConfigurationError, match=names):
        Session(*parts)


def test_the_token_does_not_leak():
    """The token is not in a repr, a pickle, or the error about a missing organisation."""
    assert SECRET not in repr(session())
    assert SECRET not in f"{session()}"
    with pytest.raises(TypeError, match="secret") as caught:
        pickle.dumps(session())
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        Session("token-without-an-org", "https://x")
    assert "token-without" not in str(caught.value)


def test_a_static_session_cannot_be_renewed():
    """The error names the environment variable of the token."""
    static = StaticSession(session())
    assert static.get_session(None) == session()
    with pytest.raises(SessionExpiredError, match="SFPUBSUB_ACCESS_TOKEN"):
        static.get_session(session())


class Provider:
    """A session provider that counts its calls, and returns a new session each time."""

    def __init__(self) -> None:
        self.calls: list[Session | None] = []

    def get_session(self, expired):
        self.calls.append(expired)
        return session(f"00D000000000001!{len(self.calls)}")


def test_threads_that_renew_at_once_share_one_renewal():
    """Eight threads that renew the same session at once cause a single sign-in."""
    provider = Provider()
    current = CurrentSession(provider)
    old = current.get()
    threads = [threading.Thread(target=lambda: current.renew(old)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert provider.calls == [None, old]
    assert current.get().access_token.endswith("!2")


def test_two_clients_share_one_sign_in():
    """Two clients with the same `CurrentSession` as their provider share each sign-in and
    renewal.
    """
    provider = Provider()
    shared = CurrentSession(provider)
    first, second = CurrentSession(shared), CurrentSession(shared)
    old = first.get()
    assert second.get() is old
    new = first.renew(old)
    assert second.renew(old) is new
    assert provider.calls == [None, old]


def test_a_failed_renewal_can_be_retried():
    """After a failed renewal, the old session is kept, and the next caller can renew it."""

    class Failing(Provider):
        def get_session(self, expired):
            if expired is not None and len(self.calls) < 2:
                self.calls.append(expired)
                raise AuthenticationError("not now")
            return super().get_session(expired)

    current = CurrentSession(Failing())
    old = current.get()
    with pytest.raises(AuthenticationError):
        current.renew(old)
    assert current.renew(old) != old


class CountingLock:
    """A lock that counts the attempts to acquire it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wanted = 0

    def __enter__(self) -> None:
        self.wanted += 1
        self._lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()


def test_a_rejected_renewal_is_shared_by_waiting_threads():
    """Eight threads that wait for one renewal all get its error; a later caller tries again.

    Repeated rejections could lock the user out.
    """
    asked, waiting = threading.Event(), threading.Barrier(8)

    class Refusing(Provider):
        def get_session(self, expired):
            if expired is None:
                return super().get_session(expired)
            self.calls.append(expired)
            asked.wait(PATIENCE)
            raise AuthenticationError("refused", error_code="invalid_grant")

    provider = Refusing()
    current = CurrentSession(provider)
    old = current.get()
    current._lock = lock = CountingLock()  # the only way to see that a caller waits
    failures = []

    def renew():
        waiting.wait(PATIENCE)
        try:
            current.renew(old)
        except AuthenticationError as error:
            failures.append(error)

    threads = [threading.Thread(target=renew) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: lock.wanted == 8, "seven to wait for the eighth")
    asked.set()
    for thread in threads:
        thread.join()
    assert provider.calls == [None, old]
    assert [error.error_code for error in failures] == ["invalid_grant"] * 8
    with pytest.raises(AuthenticationError):  # a later caller tries again
        current.renew(old)
    assert len(provider.calls) == 3


@pytest.mark.parametrize("tenant", ["00D000000000002", "core/acme/00D000000000002EAA"])
def test_a_tenant_other_than_the_tokens_is_reported(tenant):
    """If the token is rejected, the error names the token's organisation and the configured tenant.

    The service reports only that the token is invalid.
    """
    static = StaticSession(Session(SECRET, "https://x", tenant))
    with pytest.raises(AuthenticationError, match=r"00D000000000001EAA.*00D000000000002"):
        static.get_session(static.get_session(None))


@pytest.mark.parametrize("tenant", ["00D000000000001", "core/acme/00D000000000001EAA", "acme"])
def test_a_tenant_that_may_be_correct_is_not_blamed(tenant):
    """If the configured tenant matches the token's, or cannot be compared with it, the error is
    the usual expiry error.
    """
    static = StaticSession(Session(SECRET, "https://x", tenant))
    with pytest.raises(SessionExpiredError, match="no longer accepts"):
        static.get_session(static.get_session(None))


def test_white_space_around_a_token_is_removed():
    """White space before or after a token, such as the line break at a file's end, is removed."""
    assert Session(SECRET + "\n", " https://x ", "t").access_token == SECRET


@pytest.mark.parametrize("token", ["se cret", "se\ncret", "sécret"])
def test_a_token_with_invalid_characters_raises(token):
    """A token that can't be sent in a header is rejected without being shown.

    Otherwise, each call would fail as if the network were down.
    """
    with pytest.raises(ConfigurationError, match="SFPUBSUB_ACCESS_TOKEN") as caught:
        Session(token, "https://x", "t")
    assert token not in str(caught.value)


@pytest.mark.parametrize(("error", "retryable"), [(ConnectionError, True), (KeyError, False)])
def test_a_provider_error_reveals_no_secret(error, retryable):
    """A provider's exception may contain a client secret, so the error names only its type."""

    class Broken:
        def get_session(self, expired):
            raise error("POST https://x?client_secret=abc")

    with pytest.raises(AuthenticationError, match=error.__name__) as caught:
        CurrentSession(Broken()).get()
    assert "client_secret" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.retryable is retryable


@pytest.mark.parametrize(
    ("org_id", "is_same"),
    [("00D000000000001AAA", True), ("00D000000000001", True), ("00D000000000002AAA", False)],
)
def test_a_renewed_session_belongs_to_the_same_org(org_id: str, is_same: bool):
    """If another tool's default org is switched while a job runs, the renewed session is rejected,
    so that the job does not continue with another org's events. The error names both orgs.
    """

    class Switched:
        def get_session(self, expired: Session | None) -> Session:
            if expired is None:
                return session()
            return Session("new", "https://x", f"core/prod/{org_id}")

    current = CurrentSession(Switched())
    first = current.get()
    if is_same:
        assert current.renew(first).access_token == "new"
        return
    with pytest.raises(OtherOrgError, match=r"00D000000000002AAA.*00D000000000001AAA"):
        current.renew(first)
