"""Exercises in CUDA that a machine without a GPU builds, runs and grades.

An exercise is one file beside this one, ``NN_name.cu``, which a test finds by itself. `exercise`
says how it is written, `program` compiles a learner's file for the emulator, `check` grades it,
`truth` computes what a prediction should have been, `progress` keeps what was solved. Nothing here
needs torch.
"""
