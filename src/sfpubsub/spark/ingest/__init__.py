"""From a subscription into a raw table, each event once."""
