"""The ladder to look at: its counts, pictures, sources, code, marks and races."""
