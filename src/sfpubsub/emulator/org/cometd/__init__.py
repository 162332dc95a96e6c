"""The org's side of the legacy Streaming API (`/cometd/<version>`), independent of HTTP.

    sessions   connected clients, their subscriptions, and their pending events
    channels   PushTopics, generic channels, and the bus's topics in the format of this API
    texts      error messages, word for word

The Streaming API uses the same bus, clock and fault plan as the gRPC side. Its replay ids are
positions of the bus.
"""
