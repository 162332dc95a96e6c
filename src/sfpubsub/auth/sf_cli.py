"""Sign in with Salesforce's CLI ``sf``, which stores credentials and renews the token.

The output of ``sf`` contains a token, and its warnings may quote one. Only its error messages are
shown, with secrets removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.organisation import identity_of
from sfpubsub.auth.refusals import scrub
from sfpubsub.auth.session import ORG_ID, Session
from sfpubsub.auth.token_file import exclusive_lock
from sfpubsub.config import network
from sfpubsub.config.state import state_dir
from sfpubsub.errors import AuthenticationError, ConfigurationError, SfPubSubError

# How long one run of ``sf`` may take, in seconds: it starts slowly and uses the network.
COMMAND_TIMEOUT = 60.0

# How long to wait while other processes of this user ask ``sf``, in seconds: an answer takes a few
# seconds, and one of them may run into `COMMAND_TIMEOUT` twice.
_TURN_TIMEOUT = 2 * COMMAND_TIMEOUT + 30.0

# The file whose lock makes the processes of this user ask one at a time.
_LOCK = "sf-cli.lock"

# Since May 2026 ``org display`` prints [REDACTED] instead of the token, and a separate command
# prints it (salesforcecli/plugin-org, pull requests 1667 and 1673).
_SHOW_TOKEN = ("org", "auth", "show-access-token")
_DISPLAY = ("org", "display")

# The ``connectedStatus`` of a login that `display` has just used. Scratch orgs have none; anything
# else is an error (salesforcecli/plugin-org, OrgListUtil).
_CONNECTED = "Connected"


class SfCliLogin:
    """A `SessionProvider` that gets its token from ``sf``. Thread-safe.

    ``sf`` is asked by one process of this user at a time: it renews its token when it is asked, and
    if the app rotates refresh tokens, two renewals at once would end its login.

    Args:
        target_org: Username or alias; the default org if empty.
        instance_url: Expected instance URL of the org; not checked if empty.
        tenant_id: Expected tenant id of the org; not checked if empty.
        http: Makes the requests; a client with default settings if None.
        command: Name or path of the program.
    """

    def __init__(
        self,
        target_org: str = "",
        *,
        instance_url: str = "",
        tenant_id: str = "",
        http: HttpClient | None = None,
        command: str = "sf",
    ) -> None:
        self._target_org = target_org
        self._instance_url = instance_url.rstrip("/")
        self._tenant_id = tenant_id
        self._http = http or HttpClient()
        self._command = command

    def get_session(self, expired: Session | None) -> Session:
        """Return a session for the org that ``sf`` is signed in to.

        Raises:
            ConfigurationError: ``sf`` is not installed, or its org is not the expected one.
            AuthenticationError: ``sf`` failed, did not finish in time, is not signed in to the org,
                or cannot renew the token of *expired*.
            StreamUnavailableError: Other processes kept asking ``sf`` for too long.
        """
        try:
            with exclusive_lock(state_dir() / _LOCK, "sf", timeout=_TURN_TIMEOUT):
                return self._take(expired)
        except SfPubSubError as error:
            # Drop the traceback: local variables in its frames contain the token, which error
            # reporters show.
            failure = error.with_traceback(None)
        raise failure

    def _take(self, expired: Session | None) -> Session:
        shown, token = self._shown()
        refused = expired.access_token if expired is not None else None
        if token == refused:
            # `display` prints the token that was stored before it checks and renews it.
            shown, token = self._shown()
        if token == refused and _text(shown, "connectedStatus") != _CONNECTED:
            raise AuthenticationError(
                f"sf still has the token that was refused: sign in again with sf org login web"
                f"{self._for_target()}",
                # Without a status, as for a scratch org, it may have been refused by mistake.
                retryable=not _text(shown, "connectedStatus"),
            )
        # A token that is the same and works for sf was refused by mistake. Like any new session, it
        # is tried again, with the stream's backoff and budget.
        instance_url = network.check_url(
            _text(shown, "instanceUrl"),
            "the instance URL that sf returned",
            insecure=self._http.insecure,
        )
        if self._instance_url and instance_url != self._instance_url:
            raise ConfigurationError(
                f"sf is signed in to {instance_url}, but SFPUBSUB_INSTANCE_URL is "
                f"{self._instance_url}: unset it, or set SFPUBSUB_USERNAME to a user of that org"
            )
        org_id = _text(shown, "id")
        known = f"{instance_url}/id/{org_id}/user" if re.fullmatch(ORG_ID, org_id) else ""
        identity = identity_of(
            self._http,
            Bearer(instance_url, token),
            identity_url=known,
            tenant_id=self._tenant_id,
        )
        return Session(token, instance_url, identity.tenant_id, identity.user_id)

    def _shown(self) -> tuple[dict[str, Any], str]:
        """Return what ``sf`` shows of the org, and the access token."""
        shown = self._ask(*_DISPLAY)
        token = _text(shown, "accessToken")
        if not token or token.startswith("["):
            token = _text(self._ask(*_SHOW_TOKEN), "accessToken")
        if not token:
            raise AuthenticationError(
                "sf printed no access token: update the Salesforce CLI with sf update"
            )
        return shown, token

    def _ask(self, *command: str) -> dict[str, Any]:
        program = shutil.which(self._command)
        if program is None:
            raise ConfigurationError(
                f"{self._command} is not installed or not on the PATH: install the Salesforce "
                f"CLI, or sign in another way with SFPUBSUB_AUTH"
            )
        arguments = [program, *command, "--json"]
        if self._target_org:
            arguments += ["--target-org", self._target_org]
        problem = f"did not answer within {COMMAND_TIMEOUT:g} s"
        try:
            done = subprocess.run(  # noqa: S603  # no shell; the program is the user's own
                arguments,
                stdin=subprocess.DEVNULL,
                env=_plain(os.environ),
                capture_output=True,
                timeout=COMMAND_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            problem = f"could not be run: {error.strerror}"
        else:
            found = _json(done.stdout)
            result = found.get("result")
            if done.returncode == 0 and isinstance(result, dict):
                return result
            said = found.get("message")
            problem = f"failed: {scrub(said)}" if isinstance(said, str) else "failed"
            problem += f"; sign in with sf org login web{self._for_target()}"
        # Outside the except blocks, so not chained: those errors contain the program's output.
        raise AuthenticationError(f"sf {' '.join(command)} {problem}")

    def _for_target(self) -> str:
        return f" --alias {self._target_org}" if self._target_org else ""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a login cannot be pickled: create it where it is needed")


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    # With FORCE_COLOR, which some shells and CI systems set, sf puts colour codes into its JSON.
    return {**{k: v for k, v in environ.items() if k != "FORCE_COLOR"}, "NO_COLOR": "1"}


def _json(output: bytes) -> dict[str, Any]:
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value.strip() if isinstance(value, str) else ""
