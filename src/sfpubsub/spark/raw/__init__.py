"""The raw table: rows, layouts, formats, locations, and the lease that allows only one writer."""
