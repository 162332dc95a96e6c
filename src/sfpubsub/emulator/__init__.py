"""A local stand-in for the Pub/Sub API, for development and tests.

The package shares no code with the client: a server that used the client's arithmetic would agree
with the client's bugs. It imports nothing of sfpubsub outside itself.

Start reading at `server.EmulatorServer`. Who does what:

    server     starts and stops everything; the surface for tests
    servicer   the wire: protobuf in, protobuf out, statuses and trailers; decides nothing
    stream, managed_stream
               one open call each: credit, positions, keepalives, deadlines, commits
    bus, positions, managed
               the model: topics and log; positions; managed subscriptions, their slots and commits
    store      SQLite
    schemas    Avro
    faults, fault_kinds
               programmed failures, as data, counted; the table of what exists
    org_faults carries out those that are done to the org at once
    settings   every time and size that the service knows
    http       health page and admin endpoint
    seed       what a fresh emulator contains
"""
