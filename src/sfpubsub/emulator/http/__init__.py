"""The HTTP server: health, sign-in, REST and Tooling API, CometD, and the admin endpoint.

    GET  /health                                       summary
    /admin/…                                           admin
    /services/oauth2/…, /id/…, /services/Soap/u/…      oauth, soap
    /services/data/…                                   rest, sobjects, collections, describe, bulk,
                                                       events, tooling, channels, discovery,
                                                       streaming, permissions, users, tables, soql
    /cometd/…                                          cometd

`listener` implements HTTP and its limits, `routing` selects the handler, and the other modules
contain the handlers; the package `page` adds the routes of the web page. Decisions about events,
subscriptions and credentials are made in the package `org`.

The docstring of a handler begins with its method and path; … at the start of a path means
/services/data/vNN.0.
"""

from sfpubsub.emulator.http.listener import HttpServer
from sfpubsub.emulator.http.summary import health

__all__ = ["HttpServer", "health"]
