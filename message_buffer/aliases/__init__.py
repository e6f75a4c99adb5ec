"""The several ids of an author. This package may import `lanes` and every layer below it."""
