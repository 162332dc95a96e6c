"""The Pub/Sub API. `stream`, `managed_stream` and `publish_stream` each implement one kind of
stream, without gRPC; only `servicer` and `standard` use it.
"""
