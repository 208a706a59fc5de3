# make demo | test | gpu-test | bench | figures | torch-versions | lint | format | clean
#
# Needs Python >= 3.10 with venv, g++ and make; the rest is installed into .venv. TORCH is what pip is
# told to install: a machine without a GPU is served better, and much sooner, by a CPU build:
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
# The CUDA compiler comes from PyPI where there is none.
CUDA := $(if $(shell command -v nvcc 2>/dev/null),,cuda)
EXTRAS := test lint inspect plot $(CUDA)
CPP = $(shell find cute_kernels -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cpp')

empty :=
comma := ,
space := $(empty) $(empty)

.PHONY: demo test gpu-test bench figures torch-versions lint format build clean

demo: build
	$(BIN)/pyflash demo

test: build
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not gpu" tests

gpu-test: build
	$(BIN)/python -m codegen
	$(BIN)/python -m codegen --set head_dims
	$(BIN)/python -m pytest -m gpu tests

bench: build
	$(BIN)/python -m codegen --set prog
	$(BIN)/pyflash bench --set prog --dtype fp16

# The README's figures and table of speed, on this machine's GPU.
figures: build
	$(BIN)/python -m codegen
	$(BIN)/pyflash bench --seqlen 512,1k,2k,4k,8k,16k --d-head 64,128 --mask full,causal \
		--backend flash,cudnn --out build/speed.jsonl --plot docs/pictures/speed.svg \
		--roofline docs/pictures/roofline.svg --format markdown --over "PyTorch cudnn"

torch-versions: build
	$(BIN)/python tests/support/torch_versions.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

build: .venv/installed
	$(BIN)/python -m codegen --ops

# Without the libraries in this environment, but with everything that builds and tests them.
.venv/installed: pyproject.toml setup.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e ".[$(subst $(space),$(comma),$(strip $(EXTRAS)))]"
	touch $@

clean:
	rm -rf build dist *.egg-info pyflash/lib .pytest_cache .hypothesis .ruff_cache
