"""The library: what a message, a rule, a lane and an event are. It does not depend on Lambda, HTTP or CDK."""
