"""The client for applications: `PubSubClient` and its subscriptions."""
