"""The library: what a message, a rule, a lane and an event are. It does not import Lambda, HTTP or the CDK."""
