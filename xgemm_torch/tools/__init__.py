"""What the commands are made of, and measuring; the runtime imports nothing of it."""
