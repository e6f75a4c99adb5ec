"""The gate: tells a consumer whether a newer message has made the consumer's batch outdated."""
