"""Benchmarks, run by ``python -m benchmarks [CASE…]``; see docs/how-to/benchmarks.md."""
