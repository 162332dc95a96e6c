"""The page: the org for people, in a browser. Server-rendered; no script is needed to use it.

    markup     HTML that is escaped by the way it is made
    shell      what every page has: head, navigation, notice
    guard      who may look and who may change: hosts, origins, the token of a form
    live       what changes while one looks, by server-sent events
    visit      one request of a browser, and the answers there are
    topics, records, subscriptions, streams, faults, clock
               a page each
    fields, plot
               forms made from Avro; the lag of a subscription as a picture
    pages      which path is whose

Reads and changes the org as the admin endpoint does; decides nothing about it.
"""

from sfpubsub.emulator.page.pages import Pages

__all__ = ["Pages"]
