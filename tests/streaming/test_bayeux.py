"""Tests of how Bayeux messages are read, and of what each error of the service leads to."""

from __future__ import annotations

import pickle

import pytest

from sfpubsub import errors
from sfpubsub.streaming import BayeuxError, StreamingMessage
from sfpubsub.streaming.bayeux import advice_of, masked, sorted_out
from sfpubsub.streaming.failures import Next, concerns_session, error_for, what_next

BUSY = "503::Server is too busy. Please try your request again later."


def refusal(error, reconnect=None, reason=""):
    """Return the `BayeuxError` of a refused connect.

    Args:
        error: Error of the response.
        reconnect: Next step that the server advises, or None for no advice.
        reason: The failureReason; empty for none.
    """
    response = {"channel": "/meta/connect", "successful": False, "error": error}
    if reconnect is not None:
        response["advice"] = {"reconnect": reconnect}
    if reason:
        response["ext"] = {"sfdc": {"failureReason": reason}}
    return BayeuxError(response)


@pytest.mark.parametrize(
    ("text", "code", "args", "words"),
    [
        ("405:bayeux,/foo:Invalid", "405", ["bayeux", "/foo"], "Invalid"),
        ("403::Unknown client", "403", [], "Unknown client"),
        ("401:abc:Unknown client", "401", ["abc"], "Unknown client"),
        ("400::a: b", "400", [], "a: b"),
        ("no code at all", None, [], "no code at all"),
        (None, None, [], ""),
    ],
)
def test_an_error_is_split_into_code_arguments_and_message(text, code, args, words):
    """An error is split at its colons into a three-digit code, arguments and a message.

    Text that does not have this form is kept whole as the message.
    """
    found = refusal(text)
    assert (found.error_code, found.error_args, found.error_message) == (code, args, words)


@pytest.mark.parametrize("ext", [None, [], {"sfdc": None}, {"sfdc": {"failureReason": 5}}])
def test_a_malformed_ext_is_not_used_as_the_reason(ext):
    """A failureReason that is missing or not a string is replaced by the error of the response."""
    found = BayeuxError({"error": "403::Handshake denied", "ext": ext})
    assert found.reason == "403::Handshake denied"


MESSAGES = [
    # the data of the event, and the type, sobject, payload and date of its message
    (
        {
            "event": {"createdDate": "2026-01-01T00:00:00.000Z", "type": "created"},
            "sobject": {"Id": "001"},
        },
        ("created", {"Id": "001"}, None, "2026-01-01T00:00:00.000Z"),
    ),
    ({"payload": "text"}, (None, None, "text", None)),
    ({"payload": {"CreatedDate": "2026"}}, (None, None, {"CreatedDate": "2026"}, "2026")),
    (
        {"payload": {"ChangeEventHeader": {"commitTimestamp": 5}}},
        (None, None, {"ChangeEventHeader": {"commitTimestamp": 5}}, "5"),
    ),
    ("odd", (None, None, None, None)),
]


@pytest.mark.parametrize(("data", "found"), MESSAGES)
def test_a_message_exposes_the_fields_of_each_kind_of_event(data, found):
    """A message exposes type, sobject, payload and date of PushTopic, generic, platform and change
    events. A field that an event of its kind does not have is None.
    """
    message = StreamingMessage({"channel": "/topic/X?Name='a'", "data": data}, "/topic/X", 5, 1)
    assert (message.type, message.sobject, message.payload, message.created_date) == found
    assert (message.channel, message.data) == ("/topic/X", data)


def test_malformed_advice_is_ignored():
    """Advised times are converted from milliseconds to seconds; malformed ones are ignored.

    An unknown `reconnect` is treated as "none".
    """
    given = {"reconnect": "retry", "interval": 3, "timeout": 110_000}
    found = {"reconnect": "retry", "interval": 0.003, "timeout": 110.0}
    assert advice_of({"advice": {**given, "hosts": []}}) == found
    several = {"multiple-clients": True, **given}
    assert advice_of({"advice": several}) == {**found, "timeout": 0.0}
    for odd in (-1, "x", True, None, float("inf"), float("nan"), 1e30):
        assert advice_of({"advice": {"interval": odd, "timeout": 500}}) == {"timeout": 0.5}
    assert advice_of({"advice": {"reconnect": "sideways"}}) == {"reconnect": "none"}
    assert advice_of({"advice": {"multiple-clients": 1}}) == {}
    assert advice_of({"advice": "none"}) == advice_of({}) == {}


@pytest.mark.parametrize("answer", [{}, "text", None, 5, ["x"], [{}], [{"channel": 5}]])
def test_an_answer_that_is_not_a_list_of_messages_is_retryable(answer):
    """JSON other than a list of Bayeux messages, such as a proxy's, leads to a retryable error."""
    found = sorted_out(answer)
    assert type(found) is errors.RemoteProtocolError
    assert found.retryable


def test_a_secret_is_masked_in_all_texts_of_a_reply():
    """A secret is replaced in all texts of a reply, however deep, and nothing else is changed."""
    reply = {"error": "403::no: key", "ext": [{"key": "a key"}, 5, None], "successful": False}
    assert masked(reply, "key") == {
        "error": "403::no: ***",
        "ext": [{"key": "a ***"}, 5, None],
        "successful": False,
    }


ERRORS = [
    ("400::The replayId {5} you provided was invalid.  Please provide…", "ReplayIdRejectedError"),
    ("400::The replayId {5} you provided was invalid. Please provide…", "ReplayIdRejectedError"),
    ("400::The channel you requested to subscribe to does not exist {/x}", "TopicNotFoundError"),
    ("400::API version in the URI is mandatory", "ConfigurationError"),
    ("400::Unsupported API version. Only API versions '37.0'", "ConfigurationError"),
    ("400::Client x has established a session, but no cookie present", "RemoteProtocolError"),
    ("400::Invalid connection type websocket", "RemoteProtocolError"),
    ("400::Channel name not specified", "LocalProtocolError"),
    ("400::Channel subscriptions must start with a leading '/'", "LocalProtocolError"),
    ("401::Authentication invalid", "SessionExpiredError"),
    ("401::Request requires authentication", "SessionExpiredError"),
    ("401:abc:Unknown client", "StreamUnavailableError"),
    ("402::session_unknown", "StreamUnavailableError"),
    ("403::Unknown client", "StreamUnavailableError"),
    ("403::Client has not completed handshake", "StreamUnavailableError"),
    ("403::Cannot create channel {/x}", "PermissionDeniedError"),
    ("403::Handshake denied", "PermissionDeniedError"),
    ("403::Organization concurrent user limit exceeded", "QuotaExceededError"),
    ("403::Organization total events daily limit exceeded", "QuotaExceededError"),
    ("403::Restricted channel", "PermissionDeniedError"),
    ("403::User not enabled for streaming", "PermissionDeniedError"),
    ("403::Subscription limit exceeded for this topic", "QuotaExceededError"),
    (
        "403::Unable to create channel dynamically, maximum channel limit has been exceeded",
        "QuotaExceededError",
    ),
    ("403::No access on channel /u/x", "PermissionDeniedError"),
    ("404::channel names may not vary only by case", "LocalProtocolError"),
    ("404::Unknown channel /u/x", "TopicNotFoundError"),
    ("413::Maximum Request Size Exceeded", "LocalProtocolError"),
    (BUSY, "StreamUnavailableError"),
    ("418::teapot", "StreamError"),
    ("", "StreamError"),
]


@pytest.mark.parametrize(("text", "name"), ERRORS)
def test_each_documented_error_maps_to_an_exception(text, name):
    """Each documented error of the service maps to the appropriate exception.

    The exception's cause contains the server's original text, even after pickling.
    """
    error = error_for("subscribing to /topic/X", refusal(text))
    assert type(error) is getattr(errors, name)
    assert "subscribing to /topic/X" in str(error)
    cause = error.__cause__
    assert isinstance(cause, BayeuxError)
    assert (cause.error, cause.response["successful"]) == (text, False)
    code = text[:3] if "::" in text or ":abc:" in text else None
    assert cause.error_code == error.error_code == code
    kept = pickle.loads(pickle.dumps(cause))
    assert (kept.error_message, kept.error_args) == (cause.error_message, cause.error_args)


def test_the_failure_reason_determines_the_error_type():
    """A denied handshake's failureReason determines the error's type and is reported first."""
    denied = refusal("403::Handshake denied", "none", "401::Authentication invalid")
    error = error_for("the handshake", denied)
    assert type(error) is errors.SessionExpiredError
    assert "401::Authentication invalid (403::Handshake denied)" in str(error)


TABLE = [
    # error, reconnect, failureReason, and the expected next step
    ("503::busy", "retry", "", Next.BUSY),
    ("401::Authentication invalid", "none", BUSY, Next.BUSY),
    ("403::Unknown client", "handshake", "", Next.HANDSHAKE),
    ("402::session_unknown", "handshake", "", Next.HANDSHAKE),
    ("401:abc:Unknown client", "handshake", "", Next.HANDSHAKE),
    ("401::Authentication invalid", "handshake", "", Next.HANDSHAKE),
    ("500::oops", "retry", "", Next.RETRY),
    ("401::Authentication invalid", "none", "", Next.RENEW),
    ("403::Handshake denied", "none", "401::Authentication invalid", Next.RENEW),
    ("401::Authentication invalid", None, "", Next.RENEW),
    ("401::Authentication invalid", "sideways", "", Next.RENEW),
    ("403::Unknown client", None, "", Next.HANDSHAKE),
    ("403::Client has not completed handshake", None, "", Next.HANDSHAKE),
    ("403::Unknown client", "none", "", Next.STOP),
    (
        "403::Handshake denied",
        "none",
        "403::Organization concurrent user limit exceeded",
        Next.LIMIT,
    ),
    ("403::Handshake denied", "none", "", Next.STOP),
    ("403::User not enabled for streaming", None, "", Next.STOP),
    ("403::Restricted channel", "sideways", "", Next.STOP),
]


@pytest.mark.parametrize(("error", "reconnect", "reason", "step"), TABLE)
def test_the_next_step_after_a_refusal(error, reconnect, reason, step):
    """Unless the server is busy, advice to retry or to open a new session is followed.

    Without such advice, the codes of the error and the failureReason decide. Only a 401 leads to a
    new sign-in.
    """
    assert what_next(refusal(error, reconnect, reason)) is step


@pytest.mark.parametrize(
    ("error", "reconnect", "concerned"),
    [
        ("403::Unknown client", "handshake", True),
        ("403::Unknown client", None, True),
        ("401::Authentication invalid", None, True),
        (BUSY, None, True),
        ("403::Restricted channel", "none", False),
        ("403::Subscription limit exceeded for this topic", None, False),
        ("400::The replayId {1} you provided was invalid", "retry", False),
    ],
)
def test_a_refused_subscribe_may_concern_only_its_channel(error, reconnect, concerned):
    """A refused subscribe ends the session only if its error is about more than the channel."""
    assert concerns_session(refusal(error, reconnect)) is concerned
