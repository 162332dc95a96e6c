"""Find Java, start the JVM, and create Spark sessions; independent of tables."""
