"""The state and rules of the emulated org, independent of the wire protocols.

bus, positions, replay_ids, schemas
           topics and the one event log that they share
event_channels
           custom channels and their members
records    objects, their records, and the events of changes
managed    managed subscriptions, their slots and commits
accounts, sessions, signin
           users, connected apps, tokens
cometd     channels and sessions of the Streaming API
store      the database in the data directory
seed, settings, clock
           initial contents of an org; the service's times and limits; the clock
mailbox    wake-ups and requests for a stream
fault_effects  faults that change the org immediately
world      a container for all of the above, passed to the request handlers
"""
