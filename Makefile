# make demo and make test do all their own set-up; every other target builds on the same environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The accelerators need a C compiler, and one of them the headers of libjpeg-turbo; without them everything works, slower.
NATIVE := $(PIP) ./native || echo "tarmac-native is not built: apt-get install gcc libjpeg-dev"

.PHONY: demo test quick busy lint types unit heavy docs bench fuzz torture coverage clean

demo: $(VENV)/.demo
	$(BIN)/python -m demo

test: lint types unit heavy

lint: $(VENV)/.test
	$(BIN)/ruff format --check src tests bench demo examples
	$(BIN)/ruff check src tests bench demo examples
	$(BIN)/lint-imports

# pyright runs in tests/test_typing.py: it checks that public names have complete types.
types: $(VENV)/.test
	$(BIN)/mypy

# The quick tests share the cores; the heavy ones measure memory or race processes and run alone.
unit: $(VENV)/.test $(VENV)/.servers
	$(BIN)/python -m pytest -m "not heavy" -n 2 --dist loadfile

heavy: $(VENV)/.test $(VENV)/.servers
	$(BIN)/python -m pytest -m heavy

# The fast lane: no servers, no torch, no other processes. It has its own small environment for each Python.
QUICK_VENV := .venv-quick-$(notdir $(PYTHON))
quick: $(QUICK_VENV)/.quick
	$(QUICK_VENV)/bin/ruff format --check --quiet src tests bench demo examples
	$(QUICK_VENV)/bin/ruff check --quiet src tests bench demo examples
	$(QUICK_VENV)/bin/python -m pytest --quick -m "not heavy" -n 2 --dist loadfile -q

$(QUICK_VENV)/.quick: pyproject.toml
	test -d $(QUICK_VENV) || $(PYTHON) -m venv $(QUICK_VENV)
	$(QUICK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[quick]'
	touch $@

# Everything, with a busy loop on each core (LOAD=8: with eight of them) that ends with the tests.
busy: $(VENV)/.test $(VENV)/.servers
	$(BIN)/python -m tests.busy $(MAKE) test

coverage: $(VENV)/.test $(VENV)/.servers
	$(BIN)/python -m coverage run -m pytest -m "not heavy"
	$(BIN)/python -m coverage combine
	$(BIN)/python -m coverage report

docs: $(VENV)/.test
	$(BIN)/python -m tarmac.cli.reference > docs/cli.md

bench: $(VENV)/.bench
	$(BIN)/python -m bench

# The same tests with counts for a night instead of minutes.
torture: $(VENV)/.test $(VENV)/.servers
	TARMAC_TORTURE=20 $(BIN)/python -m pytest tests --timeout 36000

# Coverage-guided fuzzing; SECONDS for each target.
SECONDS ?= 300
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e .
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[test]'
	$(PIP) --no-deps open_clip_torch==3.3.0 timm==1.0.30 # consumers; their torchvision is not needed
	$(NATIVE)
	touch $@

# A store for az:// from npm. Without npm its tests are skipped, except under CI=true.
$(VENV)/.servers: | $(VENV)/.test
	if command -v npm >/dev/null; then \
	  PYTHONPATH=tests $(BIN)/python -c "from harness.servers import install_azurite as i; i()"; fi
	touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[bench]'
	$(PIP) --no-deps litdata==0.2.76 # its torchvision is not needed
	$(PIP) --no-deps --upgrade --target .tools/wids webdataset==0.2.111 # wids, which 1.x no longer has
	$(PYTHON) -m venv .tools/datatrove # with versions of its own
	.tools/datatrove/bin/python -m pip install --quiet --disable-pip-version-check datatrove==0.10.1 tokenizers orjson
	$(PYTHON) -m venv .tools/img2dataset
	.tools/img2dataset/bin/python -m pip install --quiet --disable-pip-version-check img2dataset==1.47.0
	$(PYTHON) -m venv .tools/autofaiss # which crashes with newer versions of these
	.tools/autofaiss/bin/python -m pip install --quiet --disable-pip-version-check \
	  autofaiss==2.18.0 faiss-cpu==1.7.4 'pyarrow<20' 'numpy<2'
	$(NATIVE)
	touch $@

$(VENV)/.fuzz: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[fuzz]'
	touch $@

clean:
	rm -rf $(VENV) .venv-quick-* .tools demo-data bench/data .mypy_cache .ruff_cache .pytest_cache .hypothesis
