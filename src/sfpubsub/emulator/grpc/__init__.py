"""The Pub/Sub API. `stream`, `managed_stream` and `publish_stream` each implement one kind of open
call; `servicer` is the only module here that knows gRPC and protobuf.
"""
