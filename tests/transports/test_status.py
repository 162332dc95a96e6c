"""Tests that each gRPC status and error code leads to the right error and reaction."""

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
    """A gRPC error like the one that a stub raises."""

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

# Suffix of the error code, reaction and exception: an independent copy of the documented table.
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
def test_the_error_code_decides_the_error_and_the_reaction(suffix, kind, error):
    """The error code decides the type of the error and the reaction, whatever the status."""
    trailers = (("error-code", PREFIX + suffix), ("rpc-id", "abc"), ("type", "Subscribe"))
    failure = classify("Orders", Refusal(grpc.StatusCode.UNKNOWN, "Why. rpcId: abc", trailers))
    assert failure.kind is kind
    assert type(failure.error) is error
    assert failure.error.error_code == PREFIX + suffix
    assert failure.error.rpc_id == "abc"
    assert str(failure.error).startswith("Orders: Why (")
    assert failure.error.__cause__ is not None


def test_only_the_replay_codes_reject_a_position():
    """Only the two codes for invalid replay ids make the client give up its position."""
    rejecting = {suffix for suffix, rule in BY_CODE.items() if rule.kind is REJECTED}
    assert rejecting == {
        "subscription.fetch.replayid.corrupted",
        "subscription.fetch.replayid.validation.failed",
    }
    assert all(rule.kind is not REJECTED for rule in BY_STATUS.values())


def test_codes_that_only_a_bug_can_cause_are_not_retried():
    """Error codes that only a bug in this library can cause stop the stream.

    The advice for them asks the user to report the bug.
    """
    for suffix in (
        "subscription.fetch.requested.events.invalid",
        "managed.subscription.fetch.request.commit.request.restricted",
    ):
        assert BY_CODE[suffix].kind is STOP
        assert "report" in BY_CODE[suffix].cure


@pytest.mark.parametrize("status", [s for s in grpc.StatusCode if s is not grpc.StatusCode.OK])
def test_every_status_is_classified_without_an_error_code(status):
    """Every gRPC status is classified, even without an error code, as when a proxy sent it."""
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
def test_network_failures_are_retried_but_refusals_are_not(status, kind):
    """A status that indicates a network failure is retried; one that indicates a refusal is not."""
    assert classify("Orders", Refusal(grpc.StatusCode[status])).kind is kind


def test_an_unknown_code_is_classified_by_its_status():
    """An error code that this client does not know is kept, and the status decides the error."""
    failure = classify(
        "Orders", Refusal(grpc.StatusCode.NOT_FOUND, "x", (("error-code", PREFIX + "new.thing"),))
    )
    assert type(failure.error) is TopicNotFoundError
    assert failure.error.error_code == PREFIX + "new.thing"
    assert isinstance(failure.error, StreamError)
    assert failure.kind is STOP, "a refusal with an error code is final"


@pytest.mark.parametrize(
    ("suffix", "managed", "error"),
    [
        ("", True, SubscriptionNotFoundError),
        ("new.thing", True, SubscriptionNotFoundError),
        ("topic.not.found", True, TopicNotFoundError),  # the subscription's topic was deleted
        ("", False, TopicNotFoundError),
    ],
)
def test_not_found_errors_differ_for_topics_and_subscriptions(suffix, managed, error):
    """A missing managed subscription and a missing topic raise different, unrelated exceptions."""
    trailers = (("error-code", PREFIX + suffix),) if suffix else ()
    refusal = Refusal(grpc.StatusCode.NOT_FOUND, "no", trailers)
    failure = classify("Orders", refusal, managed=managed)
    assert type(failure.error) is error
    assert failure.kind is (STOP if suffix else FailureKind.TURNED_AWAY)
    assert not issubclass(SubscriptionNotFoundError, TopicNotFoundError)


def test_the_rpc_id_is_also_found_in_the_details():
    """If the trailers have been lost, the rpc id is taken from the end of the details."""
    failure = classify("Orders", Refusal(grpc.StatusCode.INTERNAL, "Broken. rpcId: 1234-5"))
    assert failure.error.rpc_id == "1234-5"
    assert "Broken (INTERNAL, rpc id 1234-5)" in str(failure.error)


def test_binary_trailers_are_read():
    """An error code in a binary trailer is decoded and classified."""
    trailers = (("error-code", b"sfdc.platform.eventbus.grpc.service.unavailable"),)
    assert classify("x", Refusal(grpc.StatusCode.INTERNAL, "d", trailers)).kind is RETRY


def test_the_advice_in_an_error_fits_what_failed():
    """Only errors about change event topics mention change data capture, and the topic that was
    meant if the name is that of a custom object, with its c.

    The error for a stopped subscription contains the command that starts it.
    """

    def said(what: str, suffix: str) -> str:
        trailers = (("error-code", PREFIX + suffix),)
        return str(classify(what, Refusal(grpc.StatusCode.NOT_FOUND, "no", trailers)).error)

    assert "change data capture" in said("topic /data/AChangeEvent", "topic.not.found")
    assert said("topic /data/Invoice__cChangeEvent", "topic.not.found").endswith(
        "; did you mean /data/Invoice__ChangeEvent, without the c of __c?"
    )
    assert "did you mean" not in said("topic /data/AChangeEvent", "topic.not.found")
    assert said("/event/A__e", "topic.not.found").endswith(
        "; check the name, which is case-sensitive and begins with /event/ or /data/"
    )
    stopped = said("My_Sub", "managed.subscription.config.stopped")
    assert "set its state to RUN with sfpubsub managed start My_Sub" in stopped
