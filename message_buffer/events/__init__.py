"""The events: batches, amendments, cancellations and dead letters, and the bus they go to. Imports lanes and all below."""
