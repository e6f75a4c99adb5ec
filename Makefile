# Every target may be run again at any time; the ones that need .venv set it up first.

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# Without byte code, each process (a worker of pytest, a function of the local stage, a synthesis) compiles all that it
# imports, for seconds.
unexport PYTHONDONTWRITEBYTECODE

UV ?= $(shell command -v uv 2>/dev/null)
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PYTEST_ARGS ?=

# What .venv is made of. With infra/requirements.txt it can deploy what was synthesized elsewhere, and nothing else.
LOCK ?= requirements.txt
VENV := .venv
BIN := $(VENV)/bin
# Where environments are built; .venv is a link to the one in use.
VENVS := .venvs
# Without PYTHON=… a .venv that works keeps its Python, whatever python3 is today.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell $(BIN)/python -c '' 2>/dev/null && echo $(BIN)/python || echo python3)
endif
SOURCES := $(wildcard message_buffer lambdas infra bufferctl tools tests examples app.py)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

# Not $(PYTHON) itself: that may be the python of an activated .venv, which set-up is about to replace.
BASE_PYTHON := $(shell "$(PYTHON)" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))' 2>/dev/null)
# The stamp is named after what .venv depends on: the Python, the lock and the place (a venv cannot be moved).
MADE_FROM := $(shell "$(PYTHON)" -c 'import hashlib, os, sys; print(hashlib.sha256(repr((sys.version, os.getcwd(), open("$(LOCK)").read())).encode()).hexdigest()[:12])' 2>/dev/null)
READY := $(VENV)/set-up-from-$(MADE_FROM)
# For targets that only look, or stop something: they take the .venv that is there, and never build one.
NEEDS_VENV = @test -x $(BIN)/python || { echo "There is no $(VENV) that works here: run \`make setup\` first." >&2; exit 1; }

# Which stage of cdk.json is built, compared, deployed or destroyed.
STAGE ?= dev
# The console shows the local stage unless STAGE is given.
CONSOLE_STAGE = $(if $(filter-out undefined default file,$(origin STAGE)),$(STAGE),local)
# How many a day `make cost` reckons with.
MESSAGES ?= 100000
# Which lane the local stage has, if not the one in cdk.json: make demo LANE=dynamodb.
IN_LANE = $(if $(LANE),--lane $(LANE))
# A person sees each change and says yes; a pipeline has its reviewers before it.
APPROVAL ?= $(if $(CI),never,any-change)
# It says first, all at once, what is missing.
CDK = $(BIN)/python -m infra.cli
REMOVAL = $(BIN)/python -m infra.removal --stage $(STAGE)
# A folder with the templates and assets that `make synth` made, to compare or deploy instead of what the app says now.
SYNTHESIZED ?=
FROM = $(if $(SYNTHESIZED),--app "$(SYNTHESIZED)")

.PHONY: help setup test chaos check format-check lint types imports format nightly rehearse demo up down status logs \
  console verify doctor synth diff deploy prune destroy bootstrap bench bench-quick cost lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "  Variables: PYTHON=$(PYTHON) JOBS=$(JOBS) STAGE=$(STAGE) PYTEST_ARGS='tests/unit -k name'"

setup: $(READY) ## make .venv, if it is missing or out of date

$(READY):
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "Cannot find '$(PYTHON)'. Install Python 3.11 or newer, or name one: make PYTHON=python3.13"; exit 1; } >&2
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1). Name one: make PYTHON=python3.13"; exit 1; } >&2
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' lacks the modules venv and ensurepip (on Debian and Ubuntu: apt install python3-venv)."; exit 1; } >&2
	@echo "Setting up $(VENV): one to six minutes and 1.5 GB…"
	@set -e; mkdir -p $(VENVS); new=$$(mktemp -d $(VENVS)/XXXXXXXX); \
	trap 'rm -rf "$$new"' EXIT; trap 'exit 130' HUP INT TERM; \
	"$(BASE_PYTHON)" -m venv --prompt message-buffer "$$new"; \
	if [ -n "$(UV)" ]; then "$(UV)" pip install --quiet --python "$$new/bin/python" --require-hashes -r "$(LOCK)"; \
	  else "$$new/bin/python" -m pip install -qq --no-input --disable-pip-version-check --require-hashes -r "$(LOCK)"; fi; \
	ln -sf "$(CURDIR)/infra/cdk.sh" "$$new/bin/cdk"; \
	ln -sf "$(CURDIR)/bufferctl/bufferctl.sh" "$$new/bin/bufferctl"; \
	touch "$$new/$(@F)"; \
	old=$$(readlink $(VENV) || true); \
	if [ -z "$$old" ] && [ -e $(VENV) ]; then old="$$new-replaced"; mv $(VENV) "$$old"; fi; \
	ln -sfn "$$new" $(VENV); trap - EXIT; \
	case "$$old" in $(VENVS)/*) rm -rf "$$old";; esac; \
	find $(VENVS) -mindepth 1 -maxdepth 1 -mmin +60 ! -path "$$new" -exec rm -rf {} +
	@echo "$(VENV) is ready."
	@[ -z "$$VIRTUAL_ENV" ] || echo "If $(VENV) is active in this shell, activate it again: . $(VENV)/bin/activate"

demo: $(READY) ## five fragments of a customer go in, one event comes out; ARGS=--reply: and an answer to them
	@$(BIN)/python -m tools.local demo $(IN_LANE) $(ARGS)

# These tests run after all others: they keep a browser busy, or use every core for seconds.
ALONE := tests/browser tests/chaos/test_many_processes.py
# Tests on the same stage run one after the other, because they send it real traffic: the names of the stages are their
# xdist groups. They mostly wait, so two more workers than cores run them beside the others.
BESIDE_STAGES = $(BIN)/python -m pytest -n $$(($(JOBS) + 2)) --dist loadgroup $(addprefix --ignore=,$(ALONE))
LONE_TESTS = $(BIN)/python -m pytest $(ALONE)

test: $(READY) ## the tests for every change, about three minutes, or those that PYTEST_ARGS names
ifeq ($(strip $(PYTEST_ARGS)),)
	@$(BESIDE_STAGES) -m "smoke or not (stage or check or nightly)"
else
	@$(PYTEST) $(PYTEST_ARGS)
endif

chaos: $(READY) ## the other tests on the local stage: kills, outages, every command, the console in a browser
	@$(BESIDE_STAGES) -m "stage and not (smoke or nightly)"
	@$(LONE_TESTS)

check: format-check lint types imports ## everything CI checks: format, lint, types, import rules, all tests but the nightly ones
	@HYPOTHESIS_PROFILE=check $(BESIDE_STAGES) -m "not nightly"
	@$(LONE_TESTS)

format-check: $(READY) ## is everything formatted?
	@echo "== format"
	@$(BIN)/python -m ruff format --check . || { echo "make format does it."; exit 1; } >&2

lint: $(READY) ## ruff, and zizmor on the workflows
	@echo "== lint"
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/zizmor --offline --quiet --min-severity medium .github

types: $(READY) ## mypy, strict
	@echo "== types"
	@$(BIN)/python -m mypy $(SOURCES)

imports: $(READY) ## which module may import which
	@echo "== imports"
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## format, and fix what ruff can fix
	@$(BIN)/python -m ruff check --quiet --fix-only .
	@$(BIN)/python -m ruff format .

nightly: $(READY) ## all tests, with planted bugs and many more examples for the property tests, then bench-quick
	@HYPOTHESIS_PROFILE=nightly $(PYTEST) --timeout 1800 $(PYTEST_ARGS)
	@$(MAKE) bench-quick

rehearse: $(READY) ## try all of a deployment that needs no AWS account: a quarter of an hour
	@HYPOTHESIS_PROFILE=nightly $(PYTEST) --timeout 1800 tests/infra
	@HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest --timeout 1800 tests/e2e/test_deployments.py tests/e2e/test_verify.py \
	  tests/chaos/test_doctor.py tests/chaos/test_upgrades.py

up: $(READY) ## start the local stage and deploy onto it; again: deploy what changed; ARGS=--with-rules: as before `down`
	@$(BIN)/python -m tools.local up $(IN_LANE) $(ARGS)

down: ## stop the local stage
	$(NEEDS_VENV)
	@$(BIN)/python -m tools.local down

status: ## is the local stage up, and where
	$(NEEDS_VENV)
	@$(BIN)/python -m tools.local status

logs: ## follow what the functions of the local stage write; ARGS=<conversation or batch>: only about that
	$(NEEDS_VENV)
	@$(BIN)/python -m tools.local logs $(ARGS)

console: $(READY) ## serve a page that shows a stage and writes to it as a customer; starts the local stage
	@$(BIN)/python -m tools.console --stage "$(CONSOLE_STAGE)" $(ARGS)

verify: $(READY) ## does a stage work? sends to it as a customer: make verify STAGE=local
	@$(BIN)/bufferctl --stage "$(STAGE)" verify $(ARGS)

doctor: $(READY) ## why does a stage not work? only reads: make doctor STAGE=local
	@$(BIN)/bufferctl --stage "$(STAGE)" doctor $(ARGS)

synth: $(READY) ## the CloudFormation templates of a stage, in cdk.out: make synth STAGE=prod
	@said=$$($(CDK) synth -q -c stage=$(STAGE) 2>&1); ended=$$?; \
	printf '%s\n' "$$said" | sed '/^Supply a stack id/d' >&2; exit $$ended

diff: $(READY) ## what a deployment of a stage would change in AWS
	@$(CDK) diff $(FROM) -c stage=$(STAGE)

deploy: $(READY) ## deploy a stage to AWS, after showing each change and asking
	@$(CDK) deploy --all $(FROM) --require-approval $(APPROVAL) -c stage=$(STAGE)

prune: $(READY) ## remove the stacks that a stage no longer has, or that never got deployed, after asking
	@$(REMOVAL) --left-over

destroy: $(READY) ## remove a stage from AWS, after saying what goes and what stays, and asking
	@$(REMOVAL)

bootstrap: $(READY) ## prepare the account and region of a stage for CDK, once
	@$(CDK) bootstrap -c stage=$(STAGE)

bench: $(READY) ## measure everything beside the others, on a quiet machine: a quarter of an hour, some of it on a local stage
	@for each in ingest live growth cold lateness crashes pollers hanging document; do \
	  $(BIN)/python -m tools.bench.$$each || exit 1; done

bench-quick: $(READY) ## a look at most of it: two minutes, writes nothing
	@for each in ingest live growth cold pollers hanging; do $(BIN)/python -m tools.bench.$$each --quick || exit 1; done

cost: $(READY) ## what a stage costs a month: make cost STAGE=prod MESSAGES=250000
	@$(BIN)/bufferctl cost --stage "$(STAGE)" --messages-per-day $(MESSAGES)

# Hashes make one line of a file a hundred: comments on each would make it longer still.
COMPILE = "$(UV)" pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes

lock: ## pin everything again with hashes, from requirements.in (needs uv)
	@test -n "$(UV)" || { echo "make lock needs uv on the PATH."; exit 1; } >&2
	@$(COMPILE) requirements.in -o requirements.txt
	@$(COMPILE) -c requirements.txt lambdas/requirements.in -o lambdas/requirements.txt
	@$(COMPILE) -c requirements.txt infra/requirements.in -o infra/requirements.txt
	@$(COMPILE) tools/local/requirements.in -o tools/local/requirements.txt
	@$(COMPILE) examples/requirements.in -o examples/requirements.txt

clean: ## remove .venv, caches, build output, and what the local stage keeps after `make down`
	@if [ -x $(BIN)/python ] && $(BIN)/python -m tools.local running; then \
	  echo "The local stage is running out of $(VENV): run \`make down\` first." >&2; exit 1; fi
	@rm -rf $(VENV) $(VENVS) .build cdk.out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .local/kept.json
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
