"""The refresh token flow, for apps that rotate the refresh token and for those that do not.

`token_family` decides which token is used and what is stored; `token_file` stores it. The newest
refresh token exists only in the answer to a request until it is stored, so that part runs in a
thread of its own: Ctrl-C or an error in the application's thread does not stop it halfway.
"""

from __future__ import annotations

import copy
import logging
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from sfpubsub.auth.http import Answer, Form
from sfpubsub.auth.login import OAuthLogin, fields_of
from sfpubsub.auth.refusals import is_dead_grant, refused
from sfpubsub.auth.session import Session
from sfpubsub.auth.token_family import TokenFamily, fingerprint, newest_family, utc
from sfpubsub.auth.token_file import TokenFile, default_path
from sfpubsub.config.sources import NO_FILE
from sfpubsub.errors import AuthenticationError, SfPubSubError

logger = logging.getLogger("sfpubsub.auth")


class RefreshToken(OAuthLogin):
    """The refresh token flow.

    If the app rotates refresh tokens, each is valid once. The newest one is in a file, which all
    processes of this user on this machine share; they also share the access token, so that they
    request one together. Several machines cannot share a file: use `ClientCredentials` or
    `JwtBearer` there.

    Args:
        client_id: Consumer key of the app that the token was issued to.
        refresh_token: The refresh token to start with. The file takes precedence if its token
            descends from this one.
        client_secret: Consumer secret, if the app requires one.
        token_file: The file; if empty, one in the user's state directory that belongs to this
            token. ``none``: only this object has the newest token.
        **options: Arguments of `OAuthLogin`.
    """

    def __init__(
        self,
        client_id: str,
        refresh_token: str,
        *,
        client_secret: str = "",
        token_file: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # A token that was copied from a file may end with a line break.
        self._fields = Form(client_id=client_id, refresh_token=refresh_token.strip())
        if client_secret:
            self._fields["client_secret"] = client_secret
        path = default_path(self._login_host, client_id, self._fields["refresh_token"])
        if token_file:
            path = Path(token_file).expanduser()
        self.token_file: TokenFile | None = None if token_file == NO_FILE else TokenFile(path)
        """The file with the newest token; None if it is stored nowhere."""
        self._refreshing = threading.Lock()  # guards the fields below
        self._family: TokenFamily | None = None
        self._dead: tuple[str, AuthenticationError] | None = None
        self._has_warned = False

    def _form(self) -> Form:
        fields = {**self._fields, "grant_type": "refresh_token"}
        if self._family is not None:
            fields["refresh_token"] = self._family.refresh_token
        return Form(fields)

    def _sign_in(self, expired: Session | None) -> Session:
        refused_token = expired.access_token if expired is not None else None
        stop = threading.Event()
        found: Future[TokenFamily] = Future()

        def run() -> None:
            try:
                found.set_result(self._current(refused_token, stop))
            except BaseException as error:  # noqa: BLE001  # raised again in the waiting thread
                found.set_exception(error)

        # Not a daemon thread: the process must not end before the answer is stored.
        threading.Thread(target=run, name="sfpubsub-refresh").start()
        try:
            family = found.result()
        finally:
            stop.set()
        return self._session(family.answer)

    def _current(self, refused_token: str | None, stop: threading.Event) -> TokenFamily:
        file = self.token_file
        lock: AbstractContextManager[None] = file.locked(stop) if file else nullcontext()
        with self._refreshing, lock:
            stored = file.read() if file else None
            family = newest_family(self._fields["refresh_token"], stored, self._family)
            if not family.is_reusable(refused_token, time.time()):
                return self._refresh(family)
            if family is not stored:  # it could not be stored before
                self._store_answer(family)
            self._family = family
            return family

    def _refresh(self, family: TokenFamily) -> TokenFamily:
        if self._dead is not None and self._dead[0] == fingerprint(family.refresh_token):
            raise copy.copy(self._dead[1])
        self._family = family
        noted = family.asked(time.time(), socket.gethostname())
        self._store_request(noted)
        form = self._form()
        answer = self._post(form)
        if answer.status != 200:
            raise self._refusal(answer, form, family)
        # From here on, the previous refresh token may be invalid.
        found, problem = fields_of(answer), None
        try:
            self._bearer(found)
        except SfPubSubError as error:
            problem = error.with_traceback(None)
        self._family = noted.answered(found, time.time(), is_usable=problem is None)
        self._store_answer(self._family)
        if problem is not None:
            raise problem
        if self.token_file is None and self._family.is_rotated and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the org has replaced the refresh token, and only this process has the new one, "
                "because SFPUBSUB_TOKEN_FILE is %s: the next process cannot sign in with "
                "SFPUBSUB_REFRESH_TOKEN; unset SFPUBSUB_TOKEN_FILE, or name a file",
                NO_FILE,
            )
        return self._family

    def _refusal(self, answer: Answer, form: Form, family: TokenFamily) -> AuthenticationError:
        refusal = refused(answer, form.secrets(), dead_grant=self._about_dead_grant(family))
        if is_dead_grant(answer):
            # It stays dead: no further request for it, however many streams ask.
            self._dead = fingerprint(family.refresh_token), copy.copy(refusal)
        try:
            self._store(family)  # this answer was not lost
        except OSError as error:
            logger.warning("%s could not be written: %s", self._place, error.strerror)
        return refusal

    def _about_dead_grant(self, family: TokenFamily) -> str:
        again = "sign in again, and set SFPUBSUB_REFRESH_TOKEN to the new refresh token"
        if family.asked_at is not None:
            return (
                f"{again}: the answer to the request of {utc(family.asked_at)} was lost before it "
                f"was stored in {self._place}, because the process on {family.host} was killed or "
                f"the connection broke, and with it the only valid refresh token"
            )
        if not family.number:
            return (
                f"{again}: the current one was revoked, was not used for too long, or was used "
                f"elsewhere, where it was replaced"
            )
        return (
            f"{again}: the one in {self._place}, of {utc(family.answered_at)} on {family.host}, "
            f"was revoked, was not used for too long, or was used elsewhere; a token file serves "
            f"one machine, several need client-credentials or jwt"
        )

    # Storing.

    @property
    def _place(self) -> str:
        return f"the token file {self.token_file.path}" if self.token_file else "this process"

    def _store(self, family: TokenFamily) -> None:
        if self.token_file is not None:
            self.token_file.write(family)

    def _store_request(self, family: TokenFamily) -> None:
        try:
            self._store(family)
        except OSError as error:
            raise AuthenticationError(
                f"{self._place} cannot be written ({error.strerror}), so no session was requested: "
                f"the org may replace the refresh token when it is used; free space, correct the "
                f"file's permissions, or name another file with SFPUBSUB_TOKEN_FILE",
                retryable=True,
            ) from error.with_traceback(None)  # its frames contain tokens

    def _store_answer(self, family: TokenFamily) -> None:
        try:
            self._store(family)
        except OSError as error:
            raise AuthenticationError(
                f"{self._place} cannot be written ({error.strerror}), so only this process has the "
                f"newest refresh token, and does not use the session: free space or correct the "
                f"permissions before it ends",
                retryable=True,
            ) from error.with_traceback(None)  # its frames contain tokens
