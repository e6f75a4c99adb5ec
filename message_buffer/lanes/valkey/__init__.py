"""The Valkey lane: the store, its scripts, keys, connections and sign-in. Only this package imports redis."""
