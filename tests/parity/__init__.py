"""Tests of behaviour that must be the same in the emulator and in a real org.

They use only the generated gRPC stub and HTTP. By default they run against an emulator, together
with all other tests; scripts/parity.sh runs them against a real org.
"""
