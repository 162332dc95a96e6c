"""The org's side of the legacy Streaming API, `/cometd/{version}`, without the wire.

    sessions   connected clients, their subscriptions, and their pending events
    channels   PushTopics, generic channels, and the bus's topics in the format of this API
    texts      error messages, word for word

Works on the same bus, clock and fault plan as the gRPC side; its positions are the bus's numbers.
"""
