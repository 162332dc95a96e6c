"""Where positions, schemas and events that failed are kept: interfaces, and files."""
