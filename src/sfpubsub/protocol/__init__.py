"""The subscription protocol without I/O: it never blocks, has no clock and starts no threads.

`subscription.SubscriptionProtocol` takes inputs and the current time, and returns commands and its
next deadline. A driver carries out the commands; see `sfpubsub.transports.calls`.
"""
