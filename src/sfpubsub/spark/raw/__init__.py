"""The raw table: its rows, layouts, formats and locations, and the lease of its only writer."""
