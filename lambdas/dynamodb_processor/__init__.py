"""The processor of the DynamoDB lane: emits the batch of a window when its trigger arrives."""
