"""What the org holds and decides. No wire.

bus, positions, replay_ids, schemas
           topics and their one log of events
managed    managed subscriptions, their slots and commits
accounts, sessions, signin
           users, connected apps, tokens
cometd     channels of the Streaming API and who is connected
store      SQLite
seed, settings, clock
           what a fresh org contains; every time and size that the service knows; time itself
mailbox    what a stream waits on
carry_out  faults that are done to the org at once
world      all of it, as a call gets it
"""
