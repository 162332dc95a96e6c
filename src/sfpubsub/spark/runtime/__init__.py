"""Java, the JVM and the Spark session; nothing of tables."""
