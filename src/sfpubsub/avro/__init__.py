"""Avro payloads: schemas by id, decoding and encoding. Spark executors import this package, so it
must not import grpc.
"""
