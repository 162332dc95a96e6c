"""The clients that applications use, and their subscriptions and publishers."""
