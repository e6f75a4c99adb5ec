"""The names of an author who has several. This package may import `lanes` and every layer below it."""
