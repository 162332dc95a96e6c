"""Sessions: who is calling, and how a new one is had."""
