"""What the emulator and a real org must do alike: one set of tests for both.

They see the wire alone: the generated stub and HTTP. Without settings the org is an emulator, so
that they run with all other tests; scripts/parity.sh points them at a real one.
"""
