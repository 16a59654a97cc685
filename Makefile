PYTHON ?= python3
VENV := .venv
# Compiling all of torch takes longer than to compile what is imported, at its first import.
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
RUN := $(VENV)/bin/python -m

# The tests start many processes, each of which would compile everything again where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-long test-longest test-browser test-gpu test-isa check check-types check-style bench bench-memory bench-launches bench-ranks bench-cost bench-inference bench-torch bench-predict bench-reading fuzz fuzz-files fuzz-operators fuzz-programs fuzz-frozen paddle onnx adapters ray ray-long bench-ray torch-families torch-trainers bench-torch-families proto docs wheel clean

$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/dev: $(VENV)/demo
	$(PIP) -e '.[test,dev,plan,inference]'
	touch $@

demo: $(VENV)/demo         ## describe, train, save, reload and classify: the handwritten digits
	$(VENV)/bin/foreshape demo --out out

test: $(VENV)/dev          ## the whole test suite; what is said of the files themselves is checked by `make check`
	$(RUN) pytest -n 2 --dist worksteal --ignore tests/house -m "not long and not paddle and not onnx and not ray and not browser and not cuda"

test-long: $(VENV)/dev     ## the exhaustive checks
	FORESHAPE_EXAMPLES=all $(RUN) pytest -n 2 -m "(long or hypothesis) and not longest and not paddle and not onnx and not ray and not cuda"

test-longest: $(VENV)/dev  ## those of them that take longest
	$(RUN) pytest -n 2 -m longest

test-browser: $(VENV)/dev  ## the page of a network in the Chromium of this machine (apt install chromium), driven through Playwright
	$(PIP) -e '.[browser]'
	$(RUN) pytest -m browser

test-gpu: $(VENV)/dev      ## what an NVIDIA GPU computes beside the processor (with a PyTorch that is built for CUDA)
	$(RUN) pytest -n 2 -m cuda

# Each of these lets other kernels compute, with other roundings; what the processor lacks changes nothing.
ISA := ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=COMPATIBLE \
	ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=default FORESHAPE_PRODUCTS=blas FORESHAPE_PRODUCTS=onednn

test-isa: $(VENV)/dev      ## the whole test suite as on other processors, one after the other
	for setting in $(ISA); do echo "== $$setting"; env $$setting $(RUN) pytest -n 2 -m "not long and not paddle and not onnx and not ray and not browser and not cuda" || exit 1; done

check: check-types check-style ## style, types, the order of the rooms, and words; on two cores: make -j2 check

check-types: $(VENV)/dev
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

check-style: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python tests/house/words.py
	$(RUN) pytest tests/house

bench: $(VENV)/dev         ## measure against what a user would pick instead
	$(VENV)/bin/python benchmarks/run.py

bench-memory: $(VENV)/dev  ## what training steps hold: planned, measured, in torch, and with recomputation
	$(VENV)/bin/python benchmarks/memory.py

bench-launches: $(VENV)/dev ## kernels, waits, copies and bytes of a training step on a pretended GPU
	$(VENV)/bin/python benchmarks/launches.py --places

bench-ranks: $(VENV)/dev   ## training over two ranks beside torch's DistributedDataParallel
	$(VENV)/bin/python benchmarks/ranks.py

bench-cost: $(VENV)/dev    ## the predicted time of steps beside the measured one
	$(VENV)/bin/python benchmarks/cost.py

bench-inference: $(VENV)/dev ## saved networks beside onnxruntime: make bench-inference MODELS="path/model ..."
	$(PIP) -e '.[bench]'
	$(VENV)/bin/python benchmarks/inference.py $(MODELS)

bench-torch: $(VENV)/dev ## steps of networks of torch, imported and as modules again, beside eager torch and torch.compile
	$(VENV)/bin/python benchmarks/torch_networks.py

bench-predict: $(VENV)/dev ## fs.predict beside a bare loop of Executor.run
	$(VENV)/bin/python benchmarks/predict.py

bench-reading: $(VENV)/dev ## opening saved networks: first answers, foreshape check, shapes beside onnx: make bench-reading MODELS="path/model ..."
	$(PIP) -e '.[bench]'
	$(VENV)/bin/python benchmarks/reading.py $(MODELS)

SECONDS ?= 60
SEED ?= 0
fuzz: fuzz-files fuzz-operators fuzz-programs fuzz-frozen  ## each kind of fuzzing, one after the other, for SECONDS each

fuzz-files: $(VENV)/dev    ## mutated and crafted files for every reader, for SECONDS
	$(VENV)/bin/python tests/fuzz/files.py --seconds $(SECONDS) --seed $(SEED)

fuzz-operators: $(VENV)/dev ## random cases of every operator against references in torch, for SECONDS, from SEED on
	$(VENV)/bin/python tests/fuzz/operators.py --seconds $(SECONDS) --seed $(SEED)

fuzz-programs: $(VENV)/dev ## draw whole programs, and compare each way to run them with torch, for SECONDS, from SEED on
	$(VENV)/bin/python tests/fuzz/programs.py --seconds $(SECONDS) --seed $(SEED)

fuzz-frozen: $(VENV)/dev   ## draw networks, and run each frozen, by either way, beside its plain kernels and fp64, for SECONDS, from SEED on
	$(VENV)/bin/python tests/fuzz/frozen.py --seconds $(SECONDS) --seed $(SEED)

# PaddlePaddle needs an older numpy, and so an environment of its own.
PADDLE_VENV := $(CURDIR)/.venv-paddle
PADDLE_PYTHON ?= $(PADDLE_VENV)/bin/python

$(PADDLE_VENV)/bin/python:
	$(PYTHON) -m venv $(PADDLE_VENV)
	$(PADDLE_VENV)/bin/pip install --quiet --disable-pip-version-check paddlepaddle==2.6.2 'numpy<2' setuptools
	$(PADDLE_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/paddle/requirements.txt

# PaddlePaddle 3 exports what is opened here.
PADDLE3_VENV := $(CURDIR)/.venv-paddle3
PADDLE3_PYTHON ?= $(PADDLE3_VENV)/bin/python

$(PADDLE3_VENV)/bin/python:
	$(PYTHON) -m venv $(PADDLE3_VENV)
	$(PADDLE3_VENV)/bin/pip install --quiet --disable-pip-version-check paddlepaddle==3.3.1 setuptools

paddle: $(VENV)/dev $(PADDLE_PYTHON) $(PADDLE3_PYTHON) ## programs run here and in PaddlePaddle 2.6.2 and 3.3.1 (in the Pythons of PADDLE_PYTHON and PADDLE3_PYTHON, or some made for them), compared
	PADDLE_PYTHON=$(PADDLE_PYTHON) PADDLE3_PYTHON=$(PADDLE3_PYTHON) $(RUN) pytest -m paddle tests/paddle $(if $(UPDATE),--update)

# The checker and the engine that read what is written for ONNX.
ONNX_VENV := $(CURDIR)/.venv-onnx
ONNX_PYTHON ?= $(ONNX_VENV)/bin/python

$(ONNX_VENV)/bin/python:
	$(PYTHON) -m venv $(ONNX_VENV)
	$(ONNX_VENV)/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0

onnx: $(VENV)/dev $(ONNX_PYTHON) ## operators written for ONNX, checked and run in onnxruntime (in the Python of ONNX_PYTHON, or one made for it)
	ONNX_PYTHON=$(ONNX_PYTHON) $(RUN) pytest -m onnx tests/onnx_runtime

# Clusters of processes on this machine.
RAY_VENV := $(CURDIR)/.venv-ray
RAY_PYTHON ?= $(RAY_VENV)/bin/python
RAY_TESTS := tests/on_ray tests/feeding/test_ray_data.py
# A test that waits for ever ends the run with the traces of its threads.
RAY_LIMIT := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

$(RAY_VENV)/bin/python:
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt pytest hypothesis -e '.[ray,embed]'

ray: $(RAY_PYTHON)         ## training, prediction and embedding on a cluster of Ray with two processors, made here (in the Python of RAY_PYTHON, or one made for it)
	for tests in $(RAY_TESTS); do PYTHONPATH=src $(RAY_PYTHON) -m pytest -m "ray and not long" $(RAY_LIMIT) $$tests || exit 1; done

ray-long: $(RAY_PYTHON)    ## the same, and all that dies in it
	for tests in $(RAY_TESTS); do PYTHONPATH=src $(RAY_PYTHON) -m pytest -m ray $(RAY_LIMIT) $$tests || exit 1; done

bench-ray: $(RAY_PYTHON)   ## steps of two ranks on Ray beside those of two processes
	PYTHONPATH=src $(RAY_PYTHON) benchmarks/on_ray.py

# Packages that take an embedder: they need much, and so an environment of their own.
ADAPTERS_VENV := $(CURDIR)/.venv-adapters
ADAPTERS_PYTHON ?= $(ADAPTERS_VENV)/bin/python

$(ADAPTERS_VENV)/bin/python:
	$(PYTHON) -m venv $(ADAPTERS_VENV)
	$(ADAPTERS_VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[embed,serve]' pytest hypothesis langchain-core==1.7.2 chromadb==1.5.9 openai==3.57.0

adapters: $(ADAPTERS_PYTHON) ## embedders in LangChain and Chroma, and the server asked by OpenAI's client (in the Python of ADAPTERS_PYTHON, or one made for it)
	$(ADAPTERS_PYTHON) -m pytest tests/embedding/test_adapters.py tests/serving/test_text_routes.py tests/serving/test_completions.py tests/recipes/test_recipes.py -k "langchain or chroma or openai"

# The networks that are brought over from torch.
TORCH_FAMILIES_VENV := $(CURDIR)/.venv-torch-families
TORCH_FAMILIES_PYTHON ?= $(TORCH_FAMILIES_VENV)/bin/python

$(TORCH_FAMILIES_VENV)/bin/python:
	$(PYTHON) -m venv $(TORCH_FAMILIES_VENV)
	$(TORCH_FAMILIES_VENV)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 torchvision==0.28.0 timm==1.0.31 transformers==5.24.0 -e .

TORCH_TRAINERS_VENV := $(CURDIR)/.venv-torch-trainers
TORCH_TRAINERS_PYTHON ?= $(TORCH_TRAINERS_VENV)/bin/python

$(TORCH_TRAINERS_VENV)/bin/python:
	$(PYTHON) -m venv $(TORCH_TRAINERS_VENV)
	$(TORCH_TRAINERS_VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt lightning accelerate transformers==5.24.0 pytest hypothesis -e .

torch-trainers: $(TORCH_TRAINERS_PYTHON) ## the training loops of Lightning, accelerate and transformers with torch.compile's backend (in the Python of TORCH_TRAINERS_PYTHON, or one made for it)
	PYTHONPATH=src $(TORCH_TRAINERS_PYTHON) -m pytest -q -m long tests/interop/torch_backend/test_trainers.py

torch-families: $(TORCH_FAMILIES_PYTHON) ## networks of torch.nn, torchvision, timm and transformers brought over and compared (in the Python of TORCH_FAMILIES_PYTHON, or one made for it): make torch-families ONLY='timm.*'
	PYTHONPATH=src $(TORCH_FAMILIES_PYTHON) tests/families/run.py --grad $(if $(ONLY),--only '$(ONLY)')

bench-torch-families: $(TORCH_FAMILIES_PYTHON) ## memory as planned and measured, beside eager torch, and time of a training step of these networks: make bench-torch-families ONLY='timm.*' SECONDS=2
	PYTHONPATH=src $(TORCH_FAMILIES_PYTHON) benchmarks/torch_families.py $(if $(ONLY),--only '$(ONLY)') --seconds $(if $(SECONDS),$(SECONDS),$(if $(RESULTS),2,0)) $(if $(RESULTS),--results)

$(VENV)/docs: $(VENV)/demo
	$(PIP) -e '.[demo,docs]'
	touch $@

docs: $(VENV)/docs         ## build the site into site/; a link that leads nowhere is an error
	PATH="$(abspath $(VENV))/bin:$$PATH" NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

$(VENV)/wheel: $(VENV)/demo
	$(PIP) -e '.[demo,wheel]'
	touch $@

wheel: $(VENV)/wheel       ## build the package into dist/, install it in environments of its own, bare and with each of its extras, and use it
	$(VENV)/bin/python tests/wheel/check.py

proto: $(VENV)/dev         ## make the protobuf module again
	cd src && $(abspath $(VENV))/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. foreshape/language/wire/framework.proto

clean:
	rm -rf $(VENV) $(PADDLE_VENV) $(ADAPTERS_VENV) $(RAY_VENV) $(TORCH_FAMILIES_VENV) $(TORCH_TRAINERS_VENV) out site build dist
