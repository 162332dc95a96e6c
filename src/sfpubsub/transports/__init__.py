"""Transports (gRPC, and a scripted in-memory one), and the drivers that run the protocols over
them.
"""
