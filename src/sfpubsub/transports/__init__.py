"""gRPC and in-memory transports, and the drivers that run the protocols over them."""
