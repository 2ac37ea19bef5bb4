# Everything a person or CI does with Shardyard. `make help` lists it.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Where torch publishes its CPU builds. The wheels on the default index are CUDA builds on Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell grep -hE '^torch(vision)?==' trainer/requirements.txt requirements.txt)
# Arguments for the commands, e.g. make sweep ARGS="sweeps/mnist.yml --data-dir ~/data"
ARGS ?=

.PHONY: help engine image venv sweep labs labs-quick report partitions model doctor test smoke check soak bench docs clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

engine: ## a Docker engine on a bare Debian or Ubuntu machine; ARGS=stop gives it back
	@docker/engine $(ARGS)

image: venv ## the trainer image, of which every container is started; again after a change of trainer/
	$(RUN) -m orchestrator image $(ARGS)

venv: $(VENV)/ready ## the virtual environment, with pinned dependencies

sweep: venv ## train on 1 to 5 nodes and write the report; ARGS=... for another sweep
	$(RUN) -m orchestrator sweep $(ARGS)

sweep-%: venv ## sweeps/NAME.yml, e.g. make sweep-partitioning ARGS="--data-dir ~/data"
	$(RUN) -m orchestrator sweep sweeps/$*.yml $(ARGS)

labs: venv ## the published experiments that are reproduced here
	$(RUN) -m orchestrator labs $(ARGS)

lab-%: venv ## one of them, beside its published figures; ARGS=--quick for a few minutes
	$(RUN) -m orchestrator lab $* $(ARGS)

labs-quick: venv ## all of them at a few epochs, as local processes and in containers
	$(RUN) -m orchestrator lab --all --quick --runtime local --out results/labs-quick/local $(ARGS)
	$(RUN) -m orchestrator lab --all --quick --runtime docker --out results/labs-quick/docker $(ARGS)

report: venv ## write the report of a results directory again; ARGS=DIR
	$(RUN) -m orchestrator report $(ARGS)

partitions: venv ## who would get which samples, without training; ARGS="--dataset mnist --nodes 8"
	$(RUN) -m orchestrator partitions $(ARGS)

model: venv ## what a model's blocks cost here, and where to cut it; ARGS="wide_resnet --parts 2,3"
	$(RUN) -m orchestrator model $(ARGS)

doctor: venv ## what can run on this machine, and why not what cannot
	$(RUN) -m orchestrator doctor $(ARGS)

test: $(VENV)/ready-dev ## the tests; ARGS=... for pytest
	$(RUN) -m pytest $(ARGS)

smoke: $(VENV)/ready-dev ## the tests that start containers, alone
	$(RUN) -m pytest tests/smoke $(ARGS)

soak: $(VENV)/ready-dev ## every topology up and down again and again; ARGS="ddp --times 5" for less, ARGS=kill for kills
	$(RUN) -m tests.soak $(ARGS)

check: $(VENV)/ready-dev ## lint, format and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(VENV)/ready-dev ## speed, and what a run costs beside training; ARGS="collectives bytes" for a part
	$(RUN) -m tests.bench $(ARGS)

docs: venv ## the tables of components in README and docs, and the JSON Schemas
	$(RUN) -m orchestrator docs
	$(RUN) -m orchestrator schema

clean: ## remove the virtual environment and caches; results and data stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/ready: requirements.txt trainer/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Shardyard needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
# Without a GPU, torch's own index comes first: its +cpu version outranks the CUDA build of the default
# index. Where it cannot be reached, the default index has to do.
	@if nvidia-smi -L >/dev/null 2>&1; \
	then $(VENV)/bin/pip install -q $(TORCH); \
	else $(VENV)/bin/pip install -q --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH); fi
	$(VENV)/bin/pip install -q -r requirements.txt
	@touch $@

$(VENV)/ready-dev: requirements-dev.txt $(VENV)/ready
	$(VENV)/bin/pip install -q -r requirements-dev.txt
	@touch $@
