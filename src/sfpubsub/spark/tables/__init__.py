"""Tables that people query, made of raw tables."""
