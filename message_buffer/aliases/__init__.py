"""Maps the several ids of one author to one conversation. This package may import `lanes` and every layer below it."""
