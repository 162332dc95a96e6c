"""Ingest events from subscriptions into a raw table, each exactly once."""
