"""AWS: clients with time-outs, and one mapping of their errors. Only this room imports the SDK."""
