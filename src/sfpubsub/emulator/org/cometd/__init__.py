"""The org's side of the legacy Streaming API, `/cometd/{version}`, without the wire.

    sessions   who is connected, to what, and what waits for them
    channels   PushTopics, generic channels, and the bus's topics in the shape of this API
    texts      what a refusal says, word by word

Works on the same bus, clock and fault plan as the gRPC side; its positions are the bus's numbers.
"""
