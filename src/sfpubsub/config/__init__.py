"""Settings: every number that the protocol lives by, and where a setting comes from.

`numbers` has the first, `settings` the second, `places` reads them out of environment and file, and
`network` has what gRPC and HTTP need alike: trust, the proxy, and what counts as this machine.
Nothing here reads the environment before it is asked to; nothing imports grpc, requests or pyspark.
"""

from sfpubsub.config.numbers import (
    EVENT_OVERHEAD,
    FIRST_CREDIT,
    LARGEST_EVENT,
    LONGEST_EVENT_ID,
    MAX_PUBLISH_BYTES,
    MAX_PUBLISH_EVENTS,
    RETURN_CREDIT_AT,
    WINDOW,
    Limits,
    PublishLimits,
    RestTimings,
    Timings,
)
from sfpubsub.config.settings import DEFAULT_ENDPOINT, Setting, Settings

__all__ = [
    "DEFAULT_ENDPOINT",
    "EVENT_OVERHEAD",
    "FIRST_CREDIT",
    "LARGEST_EVENT",
    "LONGEST_EVENT_ID",
    "MAX_PUBLISH_BYTES",
    "MAX_PUBLISH_EVENTS",
    "RETURN_CREDIT_AT",
    "WINDOW",
    "Limits",
    "PublishLimits",
    "RestTimings",
    "Setting",
    "Settings",
    "Timings",
]
