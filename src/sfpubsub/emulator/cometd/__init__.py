"""The legacy Streaming API on the HTTP port: `/cometd/{version}`, Bayeux by long polling.

    server     the wire: JSON messages in, JSON messages out
    sessions   who is connected, to what, and what waits for them
    channels   PushTopics, generic channels, and the bus's topics in the shape of this API
    texts      what a refusal says, word by word

Works on the same bus, clock and fault plan as the gRPC side; its positions are the bus's numbers.
"""
