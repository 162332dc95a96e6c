"""Error messages of the Streaming API, word for word; names in braces are placeholders.

Source: Salesforce documentation, Streaming API error codes. The fault `refuse_message` can inject
errors that the emulator does not produce otherwise.
"""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "version missing": "400::API version in the URI is mandatory. URI format: '/cometd/67.0'",
    "version": "400::Unsupported API version. Only API versions '37.0' and later are supported. "
    "API version {version}",
    "connection type": "400::Invalid connection type {type}",
    "channel": "400::The channel you requested to subscribe to does not exist {{{channel}}}",
    "channel name": "400::Channel name not specified",
    "channel slash": "400::Channel subscriptions must start with a leading '/'",
    "replay": "400::The replayId {{{replay}}} you provided was invalid.  Please provide a valid "
    "ID, -2 to replay all events, or -1 to replay only new events.",
    "replay map": "400::The replayId for channel {{{channel}}} wasn't found using the provided "
    "replay ID map {{{map}}}.",
    "cookie": "400::Client {client} has established a session, but no BAYEUX_BROWSER cookie "
    "present",
    "authentication": "401::Authentication invalid",
    "no authentication": "401::Request requires authentication",
    "cannot create": "403::Cannot create channel {{{channel}}}",
    "handshake": "403::Handshake denied",
    "no handshake": "403::Client has not completed handshake",
    "users": "403::Organization concurrent user limit exceeded",
    "events": "403::Organization total events daily limit exceeded",
    "restricted": "403::Restricted channel",
    "not enabled": "403::User not enabled for streaming",
    "subscriptions": "403::Subscription limit exceeded for this topic",
    "unknown client": "403::Unknown client",
    "size": "413::Maximum Request Size Exceeded",
    "busy": "503::Server is too busy. Please try your request again later.",
    "dynamic channels": "403::Unable to create channel dynamically, maximum channel limit has "
    "been exceeded",
    "no access": "403::No access on channel {channel}",
    "case": "404::channel names may not vary only by case",
    "unknown channel": "404::Unknown channel {channel}",
}
"""The messages, by an internal key."""


class Refusal(Exception):  # noqa: N818 - a response, not a bug
    """Raised to answer one Bayeux message with an error.

    Args:
        key: Key of `TEXTS`; any other text, as set by a fault, is used as the error message.
        reconnect: The `reconnect` value of the advice; blank for no advice.
        reason: The `failureReason`; blank to omit it.
        **names: Values for the placeholders in the message.
    """

    def __init__(self, key: str, *, reconnect: str = "", reason: str = "", **names: object) -> None:
        self.text: str = TEXTS[key].format(**names) if key in TEXTS else key
        self.reconnect = reconnect
        self.reason = reason
        super().__init__(self.text)
