"""The subscription loop without I/O: it cannot wait, has no clock and starts no thread.

`subscription.SubscriptionProtocol` takes what happened and the time, and answers with commands and
its next deadline. A driver (sfpubsub.transports.driver) carries the commands out; its recipe
is in that module.
"""
