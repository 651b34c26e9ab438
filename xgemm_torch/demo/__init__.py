"""The demo: a training job and, on a machine without a GPU, a tour of what the emulator shows."""
