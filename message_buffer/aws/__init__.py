"""AWS: clients with time-outs, and one mapping of their errors to ours. Only this package imports the SDK."""
