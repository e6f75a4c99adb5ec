"""The library: what a message, a rule, a lane and an event are. It knows nothing of Lambda, HTTP or CDK."""
