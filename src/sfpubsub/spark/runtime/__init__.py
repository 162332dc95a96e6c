"""Find Java, start the JVM, and create Spark sessions. Independent of tables."""
