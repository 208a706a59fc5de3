# make demo | test | gpu-test | bench | figures | docs | wheel | torch-versions | lint | format | clean
#
# Needs Python >= 3.10 with venv, g++ and make; the rest is installed into .venv: for demo what runs
# pyflash, for the others its tools, too. TORCH is what pip is told to install: a machine without a GPU is served better, and much sooner, by a CPU build:
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
# The CUDA compiler comes from PyPI where there is none.
CUDA := $(if $(shell command -v nvcc 2>/dev/null),,cuda)
EXTRAS := test lint inspect plot $(CUDA)
# Python compiles a module when it is first imported; few of those that are installed ever are.
INSTALL := $(BIN)/python -m pip install --no-compile
PIPELINE := (FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold
BACKWARD := (BF16, 128, 64, 128, 2): sm90_bwd+stages_3+overlap
CPP = $(shell find cute_kernels -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cpp')

empty :=
comma := ,
space := $(empty) $(empty)

.PHONY: demo test gpu-test bench figures docs wheel torch-versions lint format build clean

demo: .venv/installed
	$(BIN)/python -m codegen --ops
	$(BIN)/pyflash demo

test: build
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not gpu" tests

gpu-test: build
	$(BIN)/python -m codegen
	for set in head_dims backward backward_sm80 invariant dropout; do $(BIN)/python -m codegen --set $$set || exit 1; done
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

# The site in build/site: open index.html. The pictures of pipelines are drawn anew.
docs: build
	$(INSTALL) -q -e ".[docs]"
	$(BIN)/pyflash emulate "$(PIPELINE)" --seqlen-q 256 --seqlen-k 512 --heads 1 --resident-ctas 1 \
		--timeline docs/pictures/sm90_timeline.svg > /dev/null
	$(BIN)/pyflash emulate "$(BACKWARD)" --seqlen-q 256 --seqlen-k 256 --heads 1 --resident-ctas 1 \
		--timeline docs/pictures/sm90_backward_timeline.svg > /dev/null
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict -f docs/site/mkdocs.yml

# dist/: the source distribution and a wheel, tested. With ARCHS=80,90 the wheel holds kernels: those
# of KERNELS, a set or short forms with semicolons between.
wheel: build
	$(BIN)/python tests/support/wheels.py $(if $(ARCHS),--archs "$(ARCHS)") $(if $(KERNELS),--kernels "$(KERNELS)")

torch-versions: build
	$(BIN)/python tests/support/torch_versions.py

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: .venv/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

build: .venv/tools
	$(BIN)/python -m codegen --ops

# pyflash, and what it runs and compiles with.
.venv/installed: pyproject.toml setup.py
	$(PYTHON) -m venv .venv
	$(INSTALL) $(TORCH)
	$(INSTALL) -e "$(if $(CUDA),.[cuda],.)"
	touch $@

# What tests it and looks inside.
.venv/tools: .venv/installed
	$(INSTALL) -e ".[$(subst $(space),$(comma),$(strip $(EXTRAS)))]"
	touch $@

clean:
	rm -rf build dist *.egg-info pyflash/lib .pytest_cache .hypothesis .ruff_cache
