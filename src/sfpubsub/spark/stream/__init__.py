"""The streaming source and sink, and the writer for ``foreachBatch``."""
