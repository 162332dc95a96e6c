"""Java, the JVM and the Spark session, independent of tables."""
