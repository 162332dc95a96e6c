"""The page: the org for people, in a browser. Server-rendered; no script is needed to use it.

    markup     HTML that is escaped by the way it is made
    shell      what every page has: head, navigation, notice
    guard      who may look and who may change: hosts, origins, the token of a form
    live       what changes while one looks, by server-sent events
    topics, publish, subscriptions, streams, faults, clock
               a page each; forms, plot and counts have what they show
    pages      which path is whose

Reads and changes the org as the admin endpoint does; decides nothing about it.
"""

from sfpubsub.emulator.page.pages import Pages

__all__ = ["Pages"]
