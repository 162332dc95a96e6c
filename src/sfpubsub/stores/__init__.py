"""Stores for positions, schemas and quarantined events: interfaces and file implementations."""
