# All tasks of users, contributors and CI. `make help` lists them.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Where torch publishes its CPU builds. The wheels on the default index are CUDA builds on Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell grep -hE '^torch(vision)?==' trainer/requirements.txt requirements.txt)
# Arguments for the commands, e.g. make sweep ARGS="sweeps/mnist.yml --data-dir ~/data"
ARGS ?=
# Worker processes of the tests that start no containers. The slow ones follow each other, so idle workers steal them.
WORKERS ?= -n 3 --dist worksteal
# Tests that are marked so run only with NIGHTLY=1.
KEPT := $(if $(NIGHTLY),, and not nightly)
# A new machine may still be updating its packages.
APT_GET := $(if $(filter-out 0,$(shell id -u)),sudo) env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300

.PHONY: help engine slurm-cluster image venv sweep watch run compare labs labs-quick report export replay predict plan partitions model doctor browser test test-unit test-process test-all golden smoke check soak mutants faults bench docs schemas picture screenshot release clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

engine: ## install and start a Docker engine on Debian or Ubuntu; ARGS=stop stops it
	@docker/engine $(ARGS)

slurm-cluster: ## start a Slurm cluster of four nodes on this machine; ARGS=stop removes it
	@slurm/cluster $(ARGS)

image: venv ## build the trainer image; repeat it after a change of trainer/
	$(RUN) -m orchestrator image $(ARGS)
	@# `docker compose up` of two checkouts must not take each other's containers for its own.
	@for file in .env compose/.env; do \
		{ grep -sv ^SHARDYARD_CHECKOUT= $$file; echo "SHARDYARD_CHECKOUT=-$$(pwd | cksum | cut -d' ' -f1)"; } > $$file.new; \
		mv $$file.new $$file; \
	done

venv: $(VENV)/ready ## create the virtual environment with pinned dependencies

sweep: venv ## run the quickstart on 1 to 4 nodes and write the report; ARGS=FILE for another sweep
	$(RUN) -m orchestrator sweep $(ARGS)

sweep-%: venv ## run sweeps/NAME.yml, e.g. make sweep-partitioning ARGS="--data-dir ~/data"
	$(RUN) -m orchestrator sweep sweeps/$*.yml $(ARGS)

watch: venv ## follow a sweep of another terminal in a browser; ARGS=DIR
	$(RUN) -m orchestrator watch $(ARGS)

run: venv ## run one strategy without a sweep file; ARGS="ddp --nodes 4 --compare"
	$(RUN) -m orchestrator run $(ARGS)

compare: venv ## compare results directories; ARGS="results/a results/b --fail-on slower=10%"
	$(RUN) -m orchestrator compare $(ARGS)

labs: venv ## list the published experiments that are reproduced here
	$(RUN) -m orchestrator labs $(ARGS)

lab-%: venv ## run one of them; ARGS=--quick for a few epochs
	$(RUN) -m orchestrator lab $* $(ARGS)

labs-quick: venv ## run small versions of all labs, as local processes and in containers
	$(RUN) -m orchestrator lab --all --quick --runtime local --out results/labs-quick/local $(ARGS)
	$(RUN) -m orchestrator lab --all --quick --runtime docker --out results/labs-quick/docker $(ARGS)

report: venv ## write the report of a results directory again; ARGS=DIR
	$(RUN) -m orchestrator report $(ARGS)

export: venv ## export results for other programs; ARGS="results/quickstart --to csv"
	$(RUN) -m orchestrator export $(ARGS)

replay: venv ## compute the cluster time of a results directory; ARGS="DIR --link 100mbit/1ms"
	$(RUN) -m orchestrator replay $(ARGS)

plan: venv ## choose how to split a model over nodes; ARGS="gpt --nodes 8 --memory 4gb"
	$(RUN) -m orchestrator plan $(ARGS)

predict: venv ## predict times on more nodes from a results directory; ARGS="DIR --nodes 8,64 --link 10gbit/50us"
	$(RUN) -m orchestrator predict $(ARGS)

partitions: venv ## show how partitioners split a dataset, without training; ARGS="--dataset mnist --nodes 8"
	$(RUN) -m orchestrator partitions $(ARGS)

model: venv ## measure a model's blocks and propose split points; ARGS="wide_resnet --parts 2,3"
	$(RUN) -m orchestrator model $(ARGS)

doctor: venv ## show what can run on this machine, and what is missing for the rest
	$(RUN) -m orchestrator doctor $(ARGS)

browser: venv ## install Chromium on Debian, in which tests open the report; one that is there stays
	@$(RUN) -c 'import sys; from orchestrator.commands.doctor import chromium; sys.exit(chromium() is None)' || \
		{ $(APT_GET) -qq update && $(APT_GET) -qq --no-install-recommends install chromium fonts-dejavu-core; }

test: $(VENV)/ready-dev ## run fast unit tests and one sweep over every topology; ARGS=... for pytest
	$(RUN) -m pytest $(WORKERS) -m "not slow" tests/unit tests/integration/test_main_path.py $(ARGS)

test-unit: $(VENV)/ready-dev ## run all unit tests
	$(RUN) -m pytest $(WORKERS) tests/unit $(ARGS)

test-process: $(VENV)/ready-dev ## run the tests that start local processes or a browser; NIGHTLY=1 for all of them
	$(RUN) -m pytest $(WORKERS) --dist loadfile tests/integration tests/contract tests/browser tests/attacks -m "not containers$(KEPT)" $(ARGS)

test-all: ## run all tests: unit, local processes and containers
	@status=0; \
	for part in test-unit test-process smoke; do $(MAKE) $$part NIGHTLY=1 || status=1; done; \
	exit $$status

golden: $(VENV)/ready-dev ## renew the golden texts in tests/golden; read their diff
	RENEW_GOLDEN=1 $(RUN) -m pytest -q $(addprefix tests/unit/orchestrator/,report/test_report_golden.py \
		commands/test_command_texts.py export/test_export_sweeps.py runtimes/slurm/test_slurm_script.py test_cli.py)

# Tests that start containers look at all containers of the engine, so they run one after the other. Many of
# them are about faults and have time limits, so they do not run beside the others.
smoke: $(VENV)/ready-dev ## run the tests that start containers; NIGHTLY=1 for all of them
	$(RUN) -m pytest tests/attacks tests/contract tests/smoke $(if $(NIGHTLY),tests/integration) -m "containers$(KEPT)" $(ARGS)

soak: $(VENV)/ready-dev ## start and stop topologies and warm nodes repeatedly; SOAK_TIMES=5 for less
	$(RUN) -m pytest -v tests/soak $(ARGS)

mutants: $(VENV)/ready-dev ## make deliberate mistakes and show which ones the tests notice; ARGS="--only NAME" for some
	$(RUN) -m tests.mutants $(ARGS)

faults: $(VENV)/ready-dev ## make every fault of docs/faults.md happen; ARGS="-k local-kill" for some
	$(RUN) -m pytest -v tests/faults $(ARGS)

check: $(VENV)/ready-dev ## lint, format and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(VENV)/ready-dev ## measure speed and overhead; ARGS="collectives bytes" for a part
	$(RUN) -m tests.bench $(ARGS)

docs: venv ## renew the tables of components in README and docs
	$(RUN) -m tools.docs

schemas: venv ## write the JSON Schemas of runs and sweep files, with which editors complete YAML
	$(RUN) -m orchestrator schema $(ARGS)

picture: venv ## draw the README's picture; ARGS=results/quickstart to use other results
	$(RUN) -m tools.picture $(ARGS)

screenshot: $(VENV)/ready-dev ## show the first screen of a report in the README; ARGS=results/quickstart
	$(RUN) -m tests.browser.screenshot $(ARGS)

release: $(VENV)/ready-dev ## build wheel and source distribution in dist/, and check them in a clean environment
	$(RUN) -m tools.release --torch-index $(TORCH_INDEX) $(ARGS)

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
	@$(RUN) -m orchestrator schema >/dev/null
	@touch $@

$(VENV)/ready-dev: requirements-dev.txt $(VENV)/ready
	$(VENV)/bin/pip install -q -r requirements-dev.txt
	@touch $@
