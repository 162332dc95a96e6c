"""A local emulator of the Pub/Sub API, for development and tests.

The package shares no code with the client, because tests cannot find a bug that client and server
share. It imports nothing from the rest of sfpubsub.

Start reading at `server.EmulatorServer`, which starts and stops everything and is the interface for
tests; `remote` is a client for an emulator in another process. Each of these packages imports only
itself and the packages listed above it:

    faults     how calls fail: the service's errors as data, and failures that a test injects
    org        the state and the rules of the org: topics, events, positions, users, tokens,
               settings, the seed, the Streaming API's channels; no network code
    grpc       the Pub/Sub API: one class for each kind of stream, and the gRPC servicer
    http       sign-in, REST and Tooling, CometD, the admin endpoint
    page       the web page, on the HTTP port
"""
