"""The CDK stacks of the message buffer. Each stack has resources of one lifetime."""
