"""The gate: answers a consumer's question whether a newer message has made its batch outdated."""
