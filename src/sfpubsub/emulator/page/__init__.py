"""The emulator's web page. It is rendered on the server and works without scripts.

    markup     HTML with escaped text
    shell      the frame of every page: head, navigation, notice
    guard      access control: hosts, origins, the token of a form
    live       updates for open pages, by server-sent events
    visit      a browser's request, and functions to answer it
    topics, records, subscriptions, streams, faults, clock
               the pages
    fields, plot
               forms generated from Avro schemas; the plot of a subscription's lag
    pages      the routes

The page reads and changes the org through the package `org`, as the admin endpoint does.
"""

from sfpubsub.emulator.page.pages import Pages

__all__ = ["Pages"]
