"""The state and rules of the emulated org, independent of the wire protocols.

bus, positions, replay_ids, schemas
           topics and their one log of events
managed    managed subscriptions, their slots and commits
accounts, sessions, signin
           users, connected apps, tokens
cometd     channels and sessions of the Streaming API
store      SQLite
seed, settings, clock
           initial contents of an org; the service's times and limits; the clock
mailbox    wake-ups and requests for a stream
carry_out  faults that act on the org immediately
world      all of the above, passed to every call
"""
