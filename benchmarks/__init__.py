"""Benchmarks, by one command: ``python -m benchmarks [CASE…]``; see docs/how-to/benchmarks.md."""
