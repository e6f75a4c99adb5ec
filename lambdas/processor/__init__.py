"""The processor: claims the due conversations of a shard of the Valkey lane, and starts conversation processors."""
