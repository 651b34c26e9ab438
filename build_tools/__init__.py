"""How the compiled half of the package is built; imported by setup.py and the Makefile.

Nothing here imports torch, so it runs in any Python. The parts:

============  ==================================================================================
settings      the environment variables that steer a build
archs         ``TORCH_CUDA_ARCH_LIST`` and its default, as nvcc's flags
cuda_toolkit  finding nvcc, its headers and its static runtime
compiler      finding g++
sources       what there is to compile: stages, their arch directives, the other files
ninja_file    writing a build.ninja and running ninja on it
library       the ninja file of csrc/xgemm: its objects become ``xgemm_torch._C``
native        the same sources as C++ programs, for the sanitizers and for gdb
ptxas         what the CUDA compiler said of each kernel, as a table
sass          what the main loops of the kernels are made of, and how fast that can be
results       what was measured, from benchmarks/results
summary       the screenful that ends a build
wheel         a wheel for other machines: built, tagged, checked
============  ==================================================================================

``python -m build_tools`` lists the commands that the Makefile uses.
"""
