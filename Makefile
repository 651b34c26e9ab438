# make demo and make test each work alone, from a fresh clone, with python3 (3.10 or newer) and g++.
#
#   make demo      environment, build, then train a small GPT twice, stock and converted, in turns;
#                  without a GPU also counts of the ladder, errors beside TF32, a race: one page
#   make test      environment, build, then all tests, sanitizer runs included
#   make bench     environment, build, then every benchmark into runs/bench; goes on where it stopped
#   make build     environment, build
#   make lint      ruff and clang-format; make format changes the files
#   make native    the kernels as C++ programs: plain, ASan + UBSan, TSan
#   make docs      README.md and docs/ as a site, site/index.html
#   make wheel     a wheel in dist/ that pip installs without a compiler
#   make hub-kernel  the wheel as a kernel of the Hugging Face Hub, a repository in dist/hub
#   make nvcc      finds nvcc, or installs it from PyPI into the environment
#   make clean     removes what was built; make distclean the environment too
#
# PYTHON=python3.12   the Python to make the environment with
# TORCH="torch==2.11.0"   what to ask pip for, options included; by default the pinned release
#                     without a GPU, the newest with one
# PY=python3          uses that Python as it is, and makes no environment
# ARGS="..."          more arguments for the demo, pytest ("-n 0": in one process) or the benchmarks
# XGEMM_CUDA, XGEMM_STAGES, XGEMM_LINE_INFO, XGEMM_GLIBC, TORCH_CUDA_ARCH_LIST, CUDA_HOME, CXX,
# MAX_JOBS: see setup.py

# A waiting OpenMP thread sleeps instead of spinning: with another program on the machine the training
# job is otherwise ten times slower, and on a quiet one no faster.
export OMP_WAIT_POLICY ?= PASSIVE

PYTHON ?= python3
VENV ?= .venv
PY ?= $(VENV)/bin/python
ARGS ?=

ifeq ($(PY),$(VENV)/bin/python)
recent = import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")
environment = @$(PYTHON) -c '$(recent)' && $(PYTHON) -m build_tools env $(VENV)
CLANG_FORMAT ?= $(VENV)/bin/clang-format
else
environment = @:
CLANG_FORMAT ?= clang-format
endif

CXX_FILES = $(shell find csrc tests/native xgemm_torch -name "*.h" -o -name "*.cpp" -o -name "*.cu")

.PHONY: demo test bench build env lint format native docs wheel hub-kernel nvcc clean distclean help
.DEFAULT_GOAL = build

demo:
	$(environment) cli
	@$(MAKE) --no-print-directory extension
	$(PY) -m xgemm_torch demo $(ARGS)

test:
	$(environment) test cli
	@$(MAKE) --no-print-directory extension
	$(PY) -m pytest -n auto $(ARGS)

bench:
	$(environment) test cli
	@$(MAKE) --no-print-directory extension
	$(PY) -m xgemm_torch bench $(ARGS)

build:
	$(environment)
	@$(MAKE) --no-print-directory extension

env:
	$(environment) test cli lint

.PHONY: extension
extension:
	@$(PY) -W ignore setup.py --quiet build_ext --inplace

native:
	$(environment)
	@$(PY) -m build_tools native $(ARGS)

docs:
	$(environment) docs --no-nvcc
	@$(PY) -m build_tools docs $(ARGS)

wheel:
	$(environment) test wheel
	@$(PY) -m build_tools wheel $(ARGS)

hub-kernel:
	$(environment) test wheel
	@$(PY) -m build_tools hub $(ARGS)

nvcc:
	$(environment) --no-nvcc
	@$(PY) -m build_tools nvcc

lint:
	$(environment) lint --no-nvcc
	$(PY) -m ruff check .
	$(CLANG_FORMAT) --dry-run -Werror $(CXX_FILES)

format:
	$(environment) lint --no-nvcc
	$(PY) -m ruff check --fix .
	$(CLANG_FORMAT) -i $(CXX_FILES)

clean:
	rm -rf build dist site *.egg-info xgemm_torch/_C*.so .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

help:
	@sed -n "1,/^$$/s/^# \{0,1\}//p" Makefile
