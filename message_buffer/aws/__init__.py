"""AWS: clients with time-outs, and one mapping of their errors. Only this package imports the SDK."""
