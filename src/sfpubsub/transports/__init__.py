"""How calls reach a service: grpc, or a scripted one in memory; and the driver of the protocol."""
