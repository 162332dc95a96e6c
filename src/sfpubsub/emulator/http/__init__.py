"""The HTTP port: health, sign-in, REST and Tooling API, CometD, and the admin endpoint.

    GET  /health                                       summary
    /admin/…                                           admin
    /services/oauth2/…, /id/…, /services/Soap/u/…      oauth, soap
    /services/data/…                                   rest, sobjects, collections, describe, bulk,
                                                       events, tooling, channels, discovery,
                                                       streaming, permissions, tables, soql
    /cometd/…                                          cometd

`listener` implements HTTP and its limits, `routing` selects the handler, and the other modules
contain the handlers; the package `page` adds the routes of the web page. None of them makes
decisions about events, subscriptions or credentials.
"""

from sfpubsub.emulator.http.listener import HttpServer
from sfpubsub.emulator.http.summary import health

__all__ = ["HttpServer", "health"]
