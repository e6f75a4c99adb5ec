"""Messages, the ids of their conversations, and the wire form in which messages are stored. It imports no lane."""
