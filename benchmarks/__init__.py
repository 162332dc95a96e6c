"""Benchmarks, reached by one command: ``python -m benchmarks [CASE…]``; see docs/benchmarks.md."""
