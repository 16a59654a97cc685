PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt
RUN := $(VENV)/bin/python -m

.PHONY: demo test test-long check bench bench-memory fuzz fuzz-programs proto clean

$(VENV)/train: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[train]'
	touch $@

$(VENV)/dev: $(VENV)/train
	$(PIP) -e '.[train,test,dev,plan]'
	touch $@

demo: $(VENV)/train        ## describe, train, save, reload and classify: the handwritten digits
	$(VENV)/bin/foreshape demo --out out

test: $(VENV)/dev          ## the whole test suite
	$(RUN) pytest -n 2 -m "not long"

test-long: $(VENV)/dev     ## the checks that take long
	$(RUN) pytest -m long

check: $(VENV)/dev         ## style, types, and the order of the rooms
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports

bench: $(VENV)/dev         ## measure against what a user would pick instead
	$(VENV)/bin/python benchmarks/run.py

bench-memory: $(VENV)/dev  ## what training steps hold: planned, measured, in torch, and with recomputation
	$(VENV)/bin/python benchmarks/memory.py

SECONDS ?= 60
fuzz: $(VENV)/dev          ## feed mutated files to the reader, for SECONDS
	$(VENV)/bin/python tests/hostile/fuzz.py --seconds $(SECONDS)

SEED ?= 0
fuzz-programs: $(VENV)/dev ## draw whole programs, and compare each way to run them with torch, for SECONDS, from SEED on
	$(VENV)/bin/python tests/fuzz/programs.py --seconds $(SECONDS) --seed $(SEED)

proto: $(VENV)/dev         ## make the protobuf module again
	cd src && ../$(RUN) grpc_tools.protoc -I. --python_out=. --pyi_out=. foreshape/wire/framework.proto

clean:
	rm -rf $(VENV) out
