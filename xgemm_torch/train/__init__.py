"""The main job: train a small GPT on real text, stock and converted, and compare the two."""
