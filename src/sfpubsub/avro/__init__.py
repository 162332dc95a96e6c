"""Decoding and encoding of Avro payloads, with schemas looked up by id.

Spark executors import this package, so it must not import grpc.
"""
