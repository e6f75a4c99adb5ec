"""The CDK stacks of the message buffer, by lifetime."""
