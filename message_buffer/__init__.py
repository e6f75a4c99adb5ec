"""The library: messages, rules, lanes and events. It does not import Lambda, HTTP or the CDK."""
