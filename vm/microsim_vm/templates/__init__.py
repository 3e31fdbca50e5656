"""Templates: what a world is made of, how it is read, and how it becomes an image."""
