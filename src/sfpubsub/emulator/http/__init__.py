"""The HTTP port: health, sign-in, the Tooling API, and the admin endpoint.

    GET  /health                                       summary
    /admin/…                                           admin
    /services/oauth2/…, /id/…, /services/Soap/u/…      oauth, soap
    /services/data/…                                   rest, events, tooling, channels,
                                                       discovery, streaming, tables, soql
    /cometd/…                                          cometd

`listener` speaks HTTP and holds its limits, `routing` finds who answers, the others answer; the
package `page` adds the routes of the web page. None decides anything about events,
subscriptions or credentials.
"""

from sfpubsub.emulator.http.listener import HttpServer
from sfpubsub.emulator.http.summary import health

__all__ = ["HttpServer", "health"]
