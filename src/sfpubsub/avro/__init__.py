"""Payloads: schemas by id, decoding and encoding. Spark executors import this, so no grpc here."""
