"""An existing `simple_salesforce.Salesforce` object as a source of sessions.

The object is duck-typed, so simple_salesforce is never imported. The object must have the
attributes ``session_id`` and ``sf_instance``. A renewal calls ``_refresh_session``, a private
method that newer versions may lack.
"""

from __future__ import annotations

import threading
from typing import Any

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.organisation import identity_of
from sfpubsub.auth.session import Session
from sfpubsub.config import network
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    SessionExpiredError,
    SfPubSubError,
)


class SimpleSalesforceLogin:
    """A `SessionProvider` with the session of a `simple_salesforce.Salesforce` object. Thread-safe.

    Args:
        salesforce: The object; its session is renewed in place.
        tenant_id: Organisation id, if it cannot be derived from the session.
        http: Makes the requests; a client with default settings if None.

    Raises:
        ConfigurationError: The object is not a `Salesforce` object.
    """

    def __init__(
        self, salesforce: Any, *, tenant_id: str = "", http: HttpClient | None = None
    ) -> None:
        for name in ("session_id", "sf_instance"):
            if not isinstance(getattr(salesforce, name, None), str):
                raise ConfigurationError(
                    f"expected a simple_salesforce.Salesforce object, but this "
                    f"{type(salesforce).__name__} has no {name}"
                )
        self._salesforce = salesforce
        self._tenant_id = tenant_id
        self._http = http or HttpClient()
        self._lock = threading.Lock()  # the object is not thread-safe

    def get_session(self, expired: Session | None) -> Session:
        """Return the object's session, renewing it first if it equals *expired*.

        Raises:
            SessionExpiredError: The object has no method to renew its session.
            AuthenticationError: Renewing the session failed.
            ConfigurationError: The org cannot be determined, or does not match the tenant id.
        """
        try:
            return self._take(expired)
        except SfPubSubError as error:
            # Drop the traceback: local variables in its frames contain the token, which error
            # reporters show.
            failure = error.with_traceback(None)
        raise failure

    def _take(self, expired: Session | None) -> Session:
        with self._lock:
            if expired is not None and expired.access_token == self._salesforce.session_id:
                self._renew()
            token, instance = self._salesforce.session_id, self._salesforce.sf_instance
        url = instance if "://" in instance else f"https://{instance}"
        instance_url = network.check_url(url, "sf_instance", insecure=self._http.insecure)
        identity = identity_of(self._http, Bearer(instance_url, token), tenant_id=self._tenant_id)
        return Session(token, instance_url, identity.tenant_id, identity.user_id)

    def _renew(self) -> None:
        refresh = getattr(self._salesforce, "_refresh_session", None)
        if not callable(refresh):
            raise SessionExpiredError(
                "the session of the simple_salesforce.Salesforce object is no longer accepted, and "
                "the object cannot renew it: create a new Salesforce object, and connect again "
                "with a new SimpleSalesforceLogin for it"
            )
        try:
            refresh()
        except Exception as error:  # noqa: BLE001  # an error of the package, or of requests
            name, retryable = type(error).__name__, isinstance(error, OSError)
        else:
            return
        # Outside the except block, so not chained: such errors contain the request and its
        # password.
        raise AuthenticationError(
            f"the simple_salesforce.Salesforce object could not renew its session ({name}): create "
            f"the object with valid credentials, because a session id alone is not enough",
            retryable=retryable,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a login contains secrets and cannot be pickled: create it where it is needed"
        )
