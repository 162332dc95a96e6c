"""A gRPC status with its trailers to a typed error and what to do about it: row by row."""

from __future__ import annotations

import grpc
import pytest

from sfpubsub.errors import (
    AuthenticationError,
    PermissionDeniedError,
    QuotaExceededError,
    ReplayIdRejectedError,
    SchemaNotFoundError,
    SessionExpiredError,
    StreamError,
    StreamUnavailableError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
    TopicNotFoundError,
)
from sfpubsub.protocol.events import FailureKind
from sfpubsub.transports.status import BY_CODE, BY_STATUS, PREFIX, classify


class Refusal(grpc.RpcError, grpc.Call):
    """What a stub raises."""

    def __init__(self, status, details="", trailers=()):
        self._status, self._details, self._trailers = status, details, trailers

    def code(self):
        return self._status

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailers

    def initial_metadata(self):
        return ()

    def is_active(self):
        return False

    def time_remaining(self):
        return None

    def cancel(self):
        return False

    def add_callback(self, callback):
        return False


RETRY, RENEW, REJECTED, HELD, AWAY, STOP = (
    FailureKind.RETRY,
    FailureKind.REAUTHENTICATE,
    FailureKind.POSITION_REJECTED,
    FailureKind.SLOT_HELD,
    FailureKind.TURNED_AWAY,
    FailureKind.STOP,
)

# Suffix of the code, what to do, which error: the fact sheet's table, written down a second time.
CODES = [
    ("service.unavailable", RETRY, StreamUnavailableError),
    ("service.auth.error", RENEW, SessionExpiredError),
    ("service.auth.headers.invalid", STOP, AuthenticationError),
    ("service.auth.refresh.invalid", RENEW, SessionExpiredError),
    ("service.protection.triggered", RETRY, StreamUnavailableError),
    ("service.protection.stream.limit.triggered", RETRY, StreamUnavailableError),
    ("service.tenant.license", STOP, PermissionDeniedError),
    ("concurrent.client.limit.exceeded", RETRY, StreamUnavailableError),
    ("topic.not.found", STOP, TopicNotFoundError),
    ("topic.meta.permission", STOP, PermissionDeniedError),
    ("topic.api.unavailable", RETRY, StreamUnavailableError),
    ("topic.validation.empty", STOP, TopicNotFoundError),
    ("schema.meta.permission", STOP, PermissionDeniedError),
    ("schema.api.unavailable", RETRY, StreamUnavailableError),
    ("schema.validation.failed", STOP, SchemaNotFoundError),
    ("subscription.fetch.replayid.corrupted", REJECTED, ReplayIdRejectedError),
    ("subscription.fetch.replayid.validation.failed", REJECTED, ReplayIdRejectedError),
    ("subscription.fetch.replay.repeated", RETRY, StreamUnavailableError),
    ("subscription.fetch.overflow", RETRY, StreamUnavailableError),
    ("subscription.topic.cannot.subscribe", STOP, PermissionDeniedError),
    ("subscription.limit.exceeded", STOP, QuotaExceededError),
    ("subscription.internal.error", RETRY, StreamUnavailableError),
    ("managed.subscription.already.active", HELD, SubscriptionBusyError),
    ("managed.subscription.config.stopped", STOP, SubscriptionStoppedError),
    ("managed.subscription.config.deleted", STOP, SubscriptionStoppedError),
    ("managed.subscription.developer.name.not.found", STOP, SubscriptionNotFoundError),
    ("managed.subscription.subscription.id.not.found", STOP, SubscriptionNotFoundError),
]


@pytest.mark.parametrize(("suffix", "kind", "error"), CODES)
def test_an_error_code_decides(suffix, kind, error):
    """The code counts, not the coarse status beside it."""
    trailers = (("error-code", PREFIX + suffix), ("rpc-id", "abc"), ("type", "Subscribe"))
    failure = classify("Orders", Refusal(grpc.StatusCode.UNKNOWN, "Why. rpcId: abc", trailers))
    assert failure.kind is kind
    assert type(failure.error) is error
    assert failure.error.error_code == PREFIX + suffix
    assert failure.error.rpc_id == "abc"
    assert str(failure.error).startswith("Orders: Why (")
    assert failure.error.__cause__ is not None


def test_only_the_replay_codes_reject_a_position():
    """T5: no other failure makes a client give up its position."""
    rejecting = {suffix for suffix, rule in BY_CODE.items() if rule.kind is REJECTED}
    assert rejecting == {
        "subscription.fetch.replayid.corrupted",
        "subscription.fetch.replayid.validation.failed",
    }
    assert all(rule.kind is not REJECTED for rule in BY_STATUS.values())


def test_what_the_client_did_wrong_is_not_tried_again():
    """Codes that only a fault of this library can bring end the stream and ask for a report."""
    for suffix in (
        "subscription.fetch.requested.events.invalid",
        "managed.subscription.fetch.request.commit.request.restricted",
    ):
        assert BY_CODE[suffix].kind is STOP
        assert "report" in BY_CODE[suffix].cure


@pytest.mark.parametrize("status", [s for s in grpc.StatusCode if s is not grpc.StatusCode.OK])
def test_every_status_without_a_code_has_a_rule(status):
    """Whatever a proxy or the network makes of a call, it is classified."""
    failure = classify("Orders", Refusal(status))
    assert failure.kind is BY_STATUS[status].kind
    assert status.name in str(failure.error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("UNAVAILABLE", RETRY), ("INTERNAL", RETRY), ("UNKNOWN", RETRY), ("CANCELLED", RETRY),
     ("DEADLINE_EXCEEDED", RETRY), ("UNAUTHENTICATED", RENEW), ("ALREADY_EXISTS", HELD),
     ("NOT_FOUND", AWAY), ("PERMISSION_DENIED", AWAY), ("FAILED_PRECONDITION", AWAY),
     ("UNIMPLEMENTED", AWAY), ("INVALID_ARGUMENT", STOP), ("OUT_OF_RANGE", STOP)],
)  # fmt: skip
def test_the_network_is_retried_and_a_refusal_is_not(status, kind):
    """Infrastructure failures carry no code and are transient, unless nothing has worked yet."""
    assert classify("Orders", Refusal(grpc.StatusCode[status])).kind is kind


def test_an_unknown_code_is_judged_by_its_status():
    """A code that the service may add one day does not break the client."""
    failure = classify(
        "Orders", Refusal(grpc.StatusCode.NOT_FOUND, "x", (("error-code", PREFIX + "new.thing"),))
    )
    assert type(failure.error) is TopicNotFoundError
    assert failure.error.error_code == PREFIX + "new.thing"
    assert isinstance(failure.error, StreamError)
    assert failure.kind is STOP, "the service's own word is final"


@pytest.mark.parametrize(
    ("suffix", "managed", "error"),
    [
        ("", True, SubscriptionNotFoundError),
        ("new.thing", True, SubscriptionNotFoundError),
        ("topic.not.found", True, TopicNotFoundError),  # of the subscription: it was deleted
        ("", False, TopicNotFoundError),
    ],
)
def test_what_was_not_found_is_said_by_type(suffix, managed, error):
    """A managed subscription is no topic: whoever handles one of the two must not catch both."""
    trailers = (("error-code", PREFIX + suffix),) if suffix else ()
    refusal = Refusal(grpc.StatusCode.NOT_FOUND, "no", trailers)
    failure = classify("Orders", refusal, managed=managed)
    assert type(failure.error) is error
    assert failure.kind is (STOP if suffix else FailureKind.TURNED_AWAY)
    assert not issubclass(SubscriptionNotFoundError, TopicNotFoundError)


def test_the_rpc_id_is_found_in_the_text_alone():
    """Trailers may be lost on the way; the text ends with the id as well."""
    failure = classify("Orders", Refusal(grpc.StatusCode.INTERNAL, "Broken. rpcId: 1234-5"))
    assert failure.error.rpc_id == "1234-5"
    assert "Broken (INTERNAL, rpc id 1234-5)" in str(failure.error)


def test_trailers_of_bytes_are_read():
    """Binary trailers do not crash the translator."""
    trailers = (("error-code", b"sfdc.platform.eventbus.grpc.service.unavailable"),)
    assert classify("x", Refusal(grpc.StatusCode.INTERNAL, "d", trailers)).kind is RETRY


def test_the_cure_is_for_the_thing_that_failed():
    """Change data capture is a word for its topics only; a stopped subscription is named."""

    def said(what: str, suffix: str) -> str:
        trailers = (("error-code", PREFIX + suffix),)
        return str(classify(what, Refusal(grpc.StatusCode.NOT_FOUND, "no", trailers)).error)

    assert "change data capture" in said("topic /data/AChangeEvent", "topic.not.found")
    assert said("/event/A__e", "topic.not.found").endswith(
        "; check the name, which is case-sensitive and begins with /event/ or /data/"
    )
    stopped = said("My_Sub", "managed.subscription.config.stopped")
    assert "set its state to RUN with sfpubsub managed start My_Sub" in stopped
