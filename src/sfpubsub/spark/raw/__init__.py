"""The raw table: what a row is, where it is kept, in which format, and who may write."""
