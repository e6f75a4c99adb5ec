"""Events: batches, amendments, cancellations, dead letters, and the bus they go to. Imports lanes and all below."""
