"""The Pub/Sub API: one open call each in `stream`, `managed_stream`, `publish_stream`; the wire in
`servicer`, the only module here that knows grpc and protobuf.
"""
