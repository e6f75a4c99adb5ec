"""The gate: tells a consumer whether a newer message has made its batch outdated."""
