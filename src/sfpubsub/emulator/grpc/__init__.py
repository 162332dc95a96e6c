"""The Pub/Sub API. `stream`, `managed_stream` and `publish_stream` each implement one kind of
stream, independently of gRPC; only `servicer` and `standard` use gRPC.
"""
