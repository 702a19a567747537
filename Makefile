# The two commands: `make run` and `make test`. Each adds to .venv what it needs, the first time and where pyproject.toml
# or constraints.txt changed. What is installed is noted by a file for each extra: .venv/.core, .venv/.jax, .venv/.dev.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
# Without --no-compile pip compiles every module of every package; Python compiles the few that are imported.
PIP := $(RUN) pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable
ARGS ?=
EXTRA ?=
WHEELS ?=
DEV := $(VENV)/.dev
# Some containers set it; as pip compiles nothing here, every process would then compile what it imports once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run study test wide slow gpu wheels cluster lint format bench constraints clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.$(or $(EXTRA),core) ## run the main job; `make run EXTRA=jax ARGS="backend=jax model=cnn"` installs jax and passes overrides on
	$(RUN) pipeline $(ARGS)

study: $(VENV)/.study ## rebuild every result of the study that is stale; `make study ARGS=--force` all of them
	PATH="$(abspath $(VENV)/bin):$$PATH" $(RUN) dvc repro $(ARGS)

test: $(DEV) ## run the tests (minutes, no GPU); `make test ARGS="-k parity"` passes options on
	$(RUN) pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

wide: $(DEV) ## run what `make test` leaves out, on the other backends too; `make wide PART=2/6` a sixth of it
	$(RUN) pytest -m wide --numprocesses 2 --dist loadfile --no-loadscope-reorder $(if $(PART),--part $(PART)) $(ARGS)

slow: $(DEV) ## run the recipes against the figures they must reach (hours)
	$(RUN) pytest -m slow --timeout 14400 $(ARGS)

ifneq ($(WHEELS),)
gpu: export PIPELINE_CACHE ?= $(abspath $(VENV))/cache
endif
# Without a network: $(PYTHON) has torch already, and the environment sees what it has.
gpu: $(if $(WHEELS),,$(DEV) $(if $(EXTRA),$(VENV)/.$(EXTRA))) ## checks and benchmarks of a GPU, 8 minutes of them a call; `make gpu WHEELS=folder` without a network
	$(if $(WHEELS),$(PYTHON) -m bench.gpu.offline $(WHEELS) $(VENV))
	$(RUN) bench gpu $(ARGS)

wheels: $(DEV) ## put into the folder WHEELS what `make gpu` needs on a machine without a network
	$(RUN) bench.gpu.wheels $(WHEELS) $(ARGS)

cluster: $(DEV) ## run grids on a real Slurm, the one that SLURM_CONF names, and on a Ray
	@command -v sbatch >/dev/null && scontrol ping | grep -q ' UP' || { echo 'no Slurm controller answers: set SLURM_CONF to its slurm.conf; docs/sweeps.md, "A Slurm to try it on", says how to start one on this machine' >&2; exit 2; }
	$(RUN) pytest -m cluster --timeout 1800 $(ARGS)

lint: $(DEV) ## check style, types and layers
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(DEV) ## mend the style
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: $(DEV) ## measure against peers, side by side; takes hours on an idle machine
	$(RUN) bench

constraints: ## pin the newest set that installs together (in a new environment), for review
	rm -rf $(VENV)-constraints
	$(PYTHON) -m venv $(VENV)-constraints
	$(VENV)-constraints/bin/pip install --quiet "$$(grep '^torch==' constraints.txt)" -e '.[dev]'
	{ grep '^#' constraints.txt; $(VENV)-constraints/bin/pip freeze --exclude-editable | grep -vE '^(cuda-(bindings|pathfinder)|nvidia-cuda-(nvrtc|runtime))==' | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV)-constraints

clean: ## remove the environment and the caches, not your runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v not in ((3, 11), (3, 12), (3, 13)) and f"Python 3.11, 3.12 or 3.13 is needed, {sys.executable} is {v[0]}.{v[1]}; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) .
	touch $@

$(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) '.[$*]'
	touch $(VENV)/.core $@
