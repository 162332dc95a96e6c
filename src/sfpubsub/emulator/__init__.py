"""A local emulator of the Pub/Sub API, for development and tests.

The package shares no code with the client: a server that used the client's arithmetic would agree
with the client's bugs. It imports nothing of sfpubsub outside itself.

Start reading at `server.EmulatorServer`, which starts and stops everything and is the interface for
tests; `remote` is a client for an emulator in another process. The packages, each of which imports
only itself and those above it:

    faults     how calls fail: the service's refusals as data, and failures that a test programs
    org        what the org holds and decides: topics, events, positions, users, tokens, settings,
               the seed, the Streaming API's channels; no wire
    grpc       the Pub/Sub API: one open call each, and the wire
    http       sign-in, REST and Tooling, CometD, the admin endpoint
    page       the web page, on the HTTP port
"""
