"""What Spark and the table formats document, in the words of this package. Knows no events."""
