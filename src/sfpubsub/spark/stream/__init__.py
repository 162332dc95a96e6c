"""The streaming source, and the writer for ``foreachBatch``."""
