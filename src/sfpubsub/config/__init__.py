"""Configuration: default timings and limits, the settings, and the sources of settings.

`numbers` defines timings and limits. `settings` defines the settings. `sources` reads settings from
the environment and from files. `network` contains the rules that gRPC and HTTP share: trusted
certificates, the proxy, and the definition of loopback. Importing this package does not read the
environment, and imports none of grpc, requests and pyspark.
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
