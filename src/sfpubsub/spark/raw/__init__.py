"""The raw table: rows, layouts, formats, locations, and the lease that admits one writer."""
