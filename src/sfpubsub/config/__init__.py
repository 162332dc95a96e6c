"""Settings: every number that the protocol lives by, and where a setting comes from.

`numbers` has the first, `settings` the second, `places` reads them out of environment and file, and
`network` has what gRPC and HTTP need alike: trust, the proxy, and what counts as this machine.
Nothing here reads the environment before it is asked to; nothing imports grpc, requests or pyspark.
"""

from sfpubsub.config.numbers import (
    FIRST_CREDIT,
    LARGEST_EVENT,
    RETURN_CREDIT_AT,
    WINDOW,
    Limits,
    Timings,
)
from sfpubsub.config.settings import DEFAULT_ENDPOINT, Setting, Settings

__all__ = [
    "DEFAULT_ENDPOINT",
    "FIRST_CREDIT",
    "LARGEST_EVENT",
    "RETURN_CREDIT_AT",
    "WINDOW",
    "Limits",
    "Setting",
    "Settings",
    "Timings",
]
