"""Messages, the ids of their conversations, and the bytes in which they wait. Imports errors alone."""
