"""Find Java, start the JVM, and create Spark sessions. Nothing here depends on tables."""
