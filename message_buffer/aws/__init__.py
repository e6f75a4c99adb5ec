"""Clients of AWS with time-outs, which raise our own errors. Only this package imports the SDK."""
