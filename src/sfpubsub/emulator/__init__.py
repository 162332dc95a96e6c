"""A local stand-in for the Pub/Sub API, for development and tests.

The package shares no code with the client: a server that used the client's arithmetic would agree
with the client's bugs. It imports nothing of sfpubsub outside itself.

Start reading at `server.EmulatorServer`. Who does what:

    server     starts and stops everything; the surface for tests
    servicer   the wire: protobuf in, protobuf out, statuses and trailers; decides nothing
    stream, managed_stream
               one open call each: credit, positions, keepalives, deadlines, commits
    bus, managed
               the model: topics, log and positions; managed subscriptions, their slots and commits
    store      SQLite
    schemas    Avro
    faults     programmed failures, as data, counted
    settings   every time and size that the service knows
    http       health page and admin endpoint
    seed       what a fresh emulator contains
"""
