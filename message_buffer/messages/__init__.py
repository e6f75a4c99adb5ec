"""Messages, the ids of their conversations, and the wire form in which they wait. It may import only `errors`."""
