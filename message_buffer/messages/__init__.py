"""Messages, ids of conversations, and the wire form in which messages are stored. The package imports no other layer
but `errors` and `limits`."""
