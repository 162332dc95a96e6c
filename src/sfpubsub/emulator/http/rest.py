"""Functions that all REST resources share: API versions, token checks, errors as JSON arrays."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from sfpubsub.emulator.http.exchange import Answer, Call, Problem, json_answer, json_body
from sfpubsub.emulator.org.records.problems import NOT_OFFERED
from sfpubsub.emulator.org.world import World

OLDEST_VERSION = 31
NEWEST_VERSION = 67
"""The API versions from `OLDEST_VERSION` to `NEWEST_VERSION` are served. The emulator is modelled
on the newest.
"""

_RETIRED_VERSION = 21
"""The API versions from this one to the one before `OLDEST_VERSION` were retired. Documented."""

_SEASONS = ("Spring", "Summer", "Winter")

_CODES: dict[HTTPStatus, str] = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UNSUPPORTED_MEDIA_TYPE",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "REQUEST_LIMIT_EXCEEDED",
    HTTPStatus.INTERNAL_SERVER_ERROR: "UNKNOWN_EXCEPTION",
}
"""Error codes by status; any other status is reported as BAD_REQUEST."""

_BELOW = {
    "tooling": ("query",),
    "composite": ("sobjects",),
    "jobs": ("ingest", "query"),
}
"""The resources below those that only lead to others."""

_SHOWN = 100
"""Maximum number of characters of a path that an error quotes."""

_FIELDS = 20
"""Maximum number of fields in a query string; requests of this API have fewer than ten."""


class RestRefused(Exception):  # noqa: N818 - an answer, not a bug
    """Raised to refuse a request to the REST API.

    Args:
        code: The errorCode in the response.
        text: The message in the response.
        *fields: Names of the invalid fields in the request; sent only with status 400.
        status: The HTTP status.
    """

    def __init__(
        self,
        code: str,
        text: str,
        *fields: str,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
    ) -> None:
        self.code = code
        self.fields = fields
        self.status = status
        super().__init__(text)


def refusal(refused: RestRefused) -> Answer:
    """Return the error response for a refused request: a JSON array with one error."""
    row: dict[str, Any] = {"message": str(refused), "errorCode": refused.code}
    if refused.status == HTTPStatus.BAD_REQUEST:
        row["fields"] = list(refused.fields)
    headers = {"WWW-Authenticate": "Token"} if refused.status == HTTPStatus.UNAUTHORIZED else {}
    return json_answer([row], refused.status, headers)


def problem(status: HTTPStatus, text: str) -> Answer:
    """Return an error response of the REST API, with an errorCode derived from *status*."""
    if status == HTTPStatus.NOT_FOUND:
        text = f"The requested resource does not exist: {text}"
    return json_answer([{"message": text, "errorCode": _CODES.get(status, "BAD_REQUEST")}], status)


def missing() -> Problem:
    """Return the error for a record or resource that does not exist. The response contains the
    method and the path of the request.
    """
    return Problem(HTTPStatus.NOT_FOUND)


def versions(call: Call) -> Answer:
    """GET /services/data: return the API versions that are served. No token is needed."""
    return json_answer(
        [
            {
                "label": _label(version),
                "url": f"/services/data/v{version}.0",
                "version": f"{version}.0",
            }
            for version in range(OLDEST_VERSION, NEWEST_VERSION + 1)
        ]
    )


def resources(call: Call) -> Answer:
    """GET /services/data/vNN.0: return the paths of the available resources."""
    base = f"/services/data/v{authorised(call)}.0"
    sessions = call.world.sessions
    user = call.world.accounts.holder(sessions.user_of(call.bearer) or "")
    return json_answer(
        {
            "identity": f"{call.url}/id/{sessions.org_id}/{user.user_id}",
            "limits": f"{base}/limits",
            "tooling": f"{base}/tooling",
            "query": f"{base}/query",
            "queryAll": f"{base}/queryAll",
            "sobjects": f"{base}/sobjects",
            "composite": f"{base}/composite",
            "jobs": f"{base}/jobs",
        }
    )


def listing(call: Call) -> Answer:
    """GET …/tooling, …/composite or …/jobs: return the paths of the resources below."""
    base = f"/services/data/v{authorised(call)}.0/{call.parts['area']}"
    return json_answer({name: f"{base}/{name}" for name in _BELOW[call.parts["area"]]})


def not_offered(call: Call) -> Answer:
    """Refuse a request for a resource that an org has and the emulator does not.

    Raises:
        RestRefused: Always; the code tells whether the token is valid.
    """
    if "version" in call.parts:
        authorised(call)
    text = f"{call.path[:_SHOWN]} is not supported by the emulator"
    raise RestRefused(NOT_OFFERED, text)


def limit_info(call: Call) -> dict[str, str]:
    """Return the header that tells how many API calls the org has used, for a request to the REST
    API with a valid token.
    """
    if not (call.path.startswith("/services/data/v") and call.world.sessions.knows(call.bearer)):
        return {}
    most = call.world.api_calls.most
    used = most - call.world.api_calls.remaining(call.world.clock.now())
    return {"Sforce-Limit-Info": f"api-usage={used}/{most}"}


def authorised(call: Call) -> int:
    """Check a request's token, and return the API version in the request's path.

    Raises:
        RestRefused: The token is not valid, or the API version was retired.
        Problem: The emulator does not serve this API version.
    """
    check_session(call.world, call.bearer)
    version = int(call.parts["version"])
    if _RETIRED_VERSION <= version < OLDEST_VERSION:
        raise RestRefused(
            "UNSUPPORTED_API_VERSION",
            f"API version {version}.0 was retired: use {OLDEST_VERSION}.0 or later",
            status=HTTPStatus.GONE,
        )
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise missing()
    return version


def check_session(world: World, token: str) -> None:
    """Check a request's token.

    Raises:
        RestRefused: The token is not valid.
    """
    if not world.sessions.knows(token):
        world.faults.met(world.sessions.ended_by(token))
        raise RestRefused(
            "INVALID_SESSION_ID", "Session expired or invalid", status=HTTPStatus.UNAUTHORIZED
        )


def asked_of(call: Call) -> dict[str, list[str]]:
    """Return the query parameters by name.

    Raises:
        RestRefused: The query string cannot be parsed.
    """
    try:
        return parse_qs(call.query, max_num_fields=_FIELDS, errors="strict")
    except ValueError as error:
        raise RestRefused(
            "MALFORMED_QUERY", f"the query string cannot be parsed: {error}"
        ) from error


def body_of(call: Call) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        RestRefused: The body is not a JSON object, or its content type is not JSON.
    """
    if call.headers.get_content_type() != "application/json":
        raise RestRefused(
            "UNSUPPORTED_MEDIA_TYPE",
            "set the Content-Type to application/json",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        )
    try:
        body = json_body(call)
        json.dumps(body, ensure_ascii=False).encode()  # lone surrogates cannot be stored
    except ValueError as error:
        raise RestRefused("JSON_PARSER_ERROR", f"the body cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise RestRefused("JSON_PARSER_ERROR", "the body must be a JSON object")
    return body


def _label(version: int) -> str:
    """Return the release name of an API version. There are three releases a year, and version 60
    was Spring '24.
    """
    years, season = divmod(version - 60, len(_SEASONS))
    year = 24 + years + (1 if _SEASONS[season] == "Winter" else 0)
    return f"{_SEASONS[season]} '{year:02d}"
