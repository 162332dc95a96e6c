"""Routes each request to its handler, and formats errors for the API to which its path belongs:
OAuth, REST, SOAP or admin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus

from sfpubsub.emulator.http import (
    admin,
    bulk,
    channels,
    collections,
    cometd,
    cors,
    describe,
    discovery,
    events,
    oauth,
    rest,
    soap,
    sobjects,
    streaming,
    summary,
    tooling,
)
from sfpubsub.emulator.http.exchange import Answer, Call, Handler, Problem, Route
from sfpubsub.emulator.http.exchange import route as _route
from sfpubsub.emulator.http.rest import RestRefused
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.signin import SignInRefused

_log = logging.getLogger(__name__)

_VERSION = r"/services/data/v(?P<version>\d{1,3})\.0"
_RECORDS = _VERSION + r"/tooling/sobjects/ManagedEventSubscription"

_OBJECT = _VERSION + r"/sobjects/(?P<object>\w+)"
_COLLECTION = _VERSION + r"/composite/sobjects"
_CHANNELS = r"(?P<object>PlatformEventChannel|PlatformEventChannelMember)"

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NOT_OFFERED = (
    r"/services/(async|apexrest|data/v\d{1,3}\.0/(async-queries|tooling/(sobjects|search"
    r"|executeAnonymous|runTests\w*|completions)|composite/(batch|tree|graph)|search"
    r"|parameterizedSearch|actions|analytics|appMenu|chatter|commerce|connect|consent|dedupe"
    r"|folders|jsonxform|knowledgeManagement|licensing|localizedvalue|metadata|nouns|payments|prechatForms"
    r"|process|quickActions|recent|scheduling|smartdatadiscovery|support|tabs|theme|ui-api|wave"
    r"|sobjects/\w+/(deleted|updated|listviews|quickActions|defaultValues)))(/.*)?"
)
"""Paths of resources that an org has and the emulator does not."""

_ROUTES = (
    _route(r"/", GET=summary.as_json),
    _route(r"/health", GET=summary.as_json),
    _route(r"/admin/faults", GET=admin.faults, POST=admin.changing(admin.add_fault)),
    _route(r"/admin/clock", GET=admin.clock, POST=admin.changing(admin.jump)),
    _route(r"/admin/publish", POST=admin.changing(admin.publish)),
    _route(r"/admin/token", POST=admin.changing(admin.token)),
    _route(r"/admin/managed", POST=admin.changing(admin.managed)),
    _route(r"/admin/schema", POST=admin.changing(admin.schema)),
    _route(r"/admin/streaming", POST=admin.changing(admin.streaming)),
    _route(r"/admin/objects", POST=admin.changing(admin.change_object)),
    _route(r"/admin/derive", POST=admin.changing(admin.derive)),
    _route(r"/admin/archive", POST=admin.changing(admin.archive)),
    _route(r"/admin/undelete", POST=admin.changing(admin.undelete)),
    _route(r"/admin/users", POST=admin.changing(admin.user)),
    _route(r"/admin/permission-sets", POST=admin.changing(admin.permission_set)),
    _route(r"/admin/api-calls", POST=admin.changing(admin.api_calls)),
    _route(r"/admin/snapshots", POST=admin.changing(admin.snapshot)),
    _route(r"/admin/apps", POST=admin.changing(admin.app)),
    _route(r"/services/oauth2/token", GET=oauth.must_post, POST=oauth.token),
    _route(r"/services/oauth2/revoke", GET=oauth.must_post, POST=oauth.revoke),
    _route(r"/services/oauth2/userinfo", GET=oauth.userinfo, POST=oauth.userinfo),
    _route(r"/services/Soap/u/(?P<version>\d{1,3})\.0(/\w*)?", POST=soap.call),
    _route(r"/services/data/?", GET=rest.versions),
    _route(_VERSION + r"/?", GET=rest.resources),
    _route(_VERSION + r"/(?P<area>tooling|composite|jobs)/?", GET=rest.listing),
    _route(
        _VERSION + r"/sobjects/(?P<object>PushTopic|StreamingChannel)/?",
        GET=describe.basics,
        POST=streaming.create,
    ),
    _route(
        _VERSION + r"/sobjects/(?P<object>PushTopic|StreamingChannel)/(?P<id>(?!describe$)\w+)",
        GET=streaming.read,
        PATCH=streaming.update,
        DELETE=streaming.delete,
    ),
    _route(
        _VERSION + r"/sobjects/(?P<object>StreamingChannel)/(?P<id>\w+)/push",
        GET=streaming.online,
        POST=streaming.push,
    ),
    # Events, their channels, and the usage of the org's allocation.
    _route(_VERSION + r"/sobjects/(?P<event>\w+__e)/?", POST=events.publish),
    _route(_VERSION + r"/sobjects/(?P<event>\w+)/eventSchema/?", GET=events.schema_of_event),
    _route(_VERSION + r"/limits/?", GET=discovery.limits),
    _route(_VERSION + r"/tooling/sobjects/" + _CHANNELS + r"/?", POST=channels.create),
    _route(
        _VERSION + r"/tooling/sobjects/" + _CHANNELS + r"/(?P<id>\w+)",
        GET=channels.read,
        PATCH=channels.update,
        DELETE=channels.delete,
    ),
    _route(_VERSION + r"/event/eventSchema/(?P<id>[\w-]+)/?", GET=events.schema_by_id),
    _route(
        _VERSION + r"/sobjects/(?P<object>User|Organization|RecordType|Profile)/(?P<id>\w+)",
        GET=sobjects.read_computed,
    ),
    # Records. These patterns also match the objects above, so they must follow them.
    _route(_VERSION + r"/query(?P<all>All)?/?", GET=sobjects.query),
    _route(_VERSION + r"/query(?P<all>All)?/(?P<locator>[\w-]+)", GET=sobjects.query_more),
    _route(_VERSION + r"/sobjects/?", GET=describe.everything),
    _route(_OBJECT + r"/?", GET=describe.basics, POST=sobjects.create),
    _route(_OBJECT + r"/describe/?", GET=describe.whole),
    _route(  # `updated` and `deleted` are not ids, but resources that are not served
        _OBJECT + r"/(?P<id>(?!(?:updated|deleted)$)\w+)",
        GET=sobjects.read,
        PATCH=sobjects.update,
        DELETE=sobjects.delete,
    ),
    _route(
        _OBJECT + r"/(?P<field>\w+)/(?P<value>.+)",
        GET=sobjects.read_by,
        PATCH=sobjects.upsert,
        DELETE=sobjects.delete_by,
    ),
    _route(
        _COLLECTION + r"/?",
        POST=collections.create,
        PATCH=collections.update,
        DELETE=collections.delete,
    ),
    _route(
        _COLLECTION + r"/(?P<object>\w+)/?",
        GET=collections.read,
        POST=collections.read,
    ),
    _route(_COLLECTION + r"/(?P<object>\w+)/(?P<field>\w+)/?", PATCH=collections.upsert),
    _route(_VERSION + r"/jobs/(?P<kind>query|ingest)/?", GET=bulk.every, POST=bulk.create),
    _route(
        _VERSION + r"/jobs/(?P<kind>query|ingest)/(?P<id>\w+)/?",
        GET=bulk.read,
        PATCH=bulk.change,
        DELETE=bulk.delete,
    ),
    _route(_VERSION + r"/jobs/(?P<kind>query)/(?P<id>\w+)/results/?", GET=bulk.results),
    _route(_VERSION + r"/jobs/ingest/(?P<id>\w+)/batches/?", PUT=bulk.upload),
    _route(
        _VERSION
        + r"/jobs/ingest/(?P<id>\w+)"
        + r"/(?P<which>(?i:successfulResults|failedResults|unprocessedrecords))/?",
        GET=bulk.ingested,
    ),
    # Some clients add the kind of the message to the path.
    _route(r"/cometd(/(?P<version>\d{1,3}\.\d)?(/\w+)?/?)?", POST=cometd.answer),
    _route(_VERSION + r"/tooling/query/?", GET=tooling.query),
    _route(_RECORDS + r"/?", POST=tooling.create),
    _route(
        _RECORDS + r"/(?P<id>\w+)",
        GET=tooling.read,
        PATCH=tooling.update,
        DELETE=tooling.delete,
    ),
    _route(r"/id/(?P<org>\w+)/(?P<user>\w+)", GET=oauth.identity, POST=oauth.identity),
    _route(_NOT_OFFERED, **dict.fromkeys(_METHODS, rest.not_offered)),
)

# Path prefix -> the function that formats an error there; the first match applies.
_AREAS: tuple[tuple[str, Callable[[HTTPStatus, str], Answer]], ...] = (
    ("/services/oauth2/", oauth.problem),
    ("/id/", oauth.problem),
    ("/services/data", rest.problem),
    ("/services/Soap/", soap.problem),
    ("", summary.problem),
)


def answer(call: Call, pages: Sequence[Route] = ()) -> Answer:
    """Return the response to a request. An error has the format of the API to which the path
    belongs: OAuth, REST, SOAP or admin.

    Args:
        call: The request.
        pages: Routes that take precedence over those of this package.
    """
    found = _answer(call, pages)
    headers = {**found.headers, **rest.limit_info(call)}
    return cors.shared(call, replace(found, headers=headers))


def _answer(call: Call, pages: Sequence[Route]) -> Answer:
    try:
        return _handler(call, pages)(call)
    except Problem as found:
        return refusal(call.path, Problem(found.status, str(found) or _line(call)))
    except RestRefused as refused:
        return refusal(call.path, refused)
    except RecordProblem as found:
        status = HTTPStatus(found.status)
        return rest.refusal(RestRefused(found.code, found.text, *found.fields, status=status))
    except SignInRefused as refused:
        _log.debug("sign-in refused: %s", refused.description)
        return oauth.refusal(refused)
    except Exception:  # noqa: BLE001 - a bug in the emulator must not leave a client unanswered
        _log.exception("%s %s failed", call.method, call.path)
        text = "the emulator failed; see its log for the reason"
        return problem(call.path, HTTPStatus.INTERNAL_SERVER_ERROR, text)


def refusal(path: str, refused: Problem | RestRefused) -> Answer:
    """Return the error response for a request to *path* that was refused."""
    if isinstance(refused, RestRefused):
        return rest.refusal(refused)
    return problem(path, refused.status, str(refused))


def problem(path: str, status: HTTPStatus, text: str) -> Answer:
    """Return an error response in the format of the API to which *path* belongs."""
    shape = next(shape for start, shape in _AREAS if path.startswith(start))
    return shape(status, text)


def _handler(call: Call, pages: Sequence[Route]) -> Handler:
    for route in (*pages, *_ROUTES):
        found = route.path.fullmatch(call.path)
        if found is None:
            continue
        if call.method == "OPTIONS":
            methods = ["OPTIONS", *(["HEAD"] if "GET" in route.methods else []), *route.methods]
            return lambda _asked: Answer(
                HTTPStatus.NO_CONTENT, headers={"Allow": ", ".join(sorted(methods))}
            )
        handler = route.methods.get("GET" if call.method == "HEAD" else call.method)
        if handler is None:
            raise Problem(
                HTTPStatus.METHOD_NOT_ALLOWED, f"HTTP Method '{call.method}' not allowed here"
            )
        _count(call)
        parts = found.groupdict()
        return lambda asked: handler(replace(asked, parts=parts))
    raise Problem(HTTPStatus.NOT_FOUND, f"{_line(call)} is not served")


def _line(call: Call) -> str:
    return f"{call.method} {call.path[:_SHOWN]}"


def _count(call: Call) -> None:
    """Count an API call against the daily limit. Calls without a valid session are not counted.

    Raises:
        RestRefused: The limit has been reached.
    """
    if not call.path.startswith("/services/data/v") or not call.world.sessions.knows(call.bearer):
        return
    if not call.world.api_calls.take(call.world.clock.now()):
        raise RestRefused(
            "REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded.", status=HTTPStatus.FORBIDDEN
        )


_SHOWN = 100
"""Maximum number of characters of a path that an error quotes."""
