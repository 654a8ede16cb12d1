# Every target sets up .venv by itself, from PyPI alone. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
LAB := $(VENV)/ready-lab
VERSION := import sys; print(*sys.version_info[:2], sep=".")
REVIEW := build/review
QUIET := $(if $(MAKE_TERMOUT),,--quiet)  # on a terminal pip shows what it does
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)  # as in a container
PYTEST := $(BIN)/python -m pytest --dist worksteal --timeout 600  # with -n 4 on two cores, as tests of real servers wait
# What `make test` does not run, or tries with fewer examples.
MORE := long or real or hypothesis
unexport PYTHONDONTWRITEBYTECODE  # without bytecode, four workers and each server under test compile everything anew
ifndef SEED
SEED := $(shell $(PYTHON) -c 'import secrets; print(secrets.randbelow(10**9))')
endif

.DEFAULT_GOAL := help
.PHONY: family help review test test-all test-runtime test-deep mutants soak chaos simulate cluster lint diagrams specs serve notebooks lab power bench field field-again constraints clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

# A .venv that another version of Python has made is made anew.
ifneq ($(shell $(PYTHON) -c '$(VERSION)'),$(shell test -x $(BIN)/python && $(BIN)/python -c '$(VERSION)'))
.PHONY: $(READY)
CLEAR := --clear
endif

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Cancelmark needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python -a -z '$(CLEAR)' || $(PYTHON) -m venv $(CLEAR) $(VENV)
	@echo "installing into $(VENV), once: this takes a minute or more"
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

review: $(READY) ## the main job: check everything, write one page that shows it, say where it is
	@mkdir -p $(REVIEW)
	@$(BIN)/cancelmark review -o $(REVIEW)/review.html

test: $(READY) ## for each change: what runs inside one process, and a short test of each real part (3 minutes on two cores)
	@$(PYTEST) -n 2 -m "not long and (smoke or not real)"

test-all: $(READY) ## before a change lands: all tests, larger bounds, more examples; SEED=NUMBER draws the same again
	@echo "reproduce the random tests with: make test-all SEED=$(SEED)"
	@CANCELMARK_TESTS=all $(PYTEST) -n 4 $(if $(TESTED),-m "$(MORE)") \
		--hypothesis-profile fresh --hypothesis-seed $(SEED) || \
		{ echo "this failed with: make test-all SEED=$(SEED)"; exit 1; }
	@CANCELMARK_TESTS=all CANCELMARK_TEST_ON_POSTGRES=1 $(PYTEST) -n 4 tests/impl/server/test_server_behaviours.py \
		tests/impl/server/test_family_calls.py

test-runtime: $(READY) ## the tests of the runtime, the store and the scheduler alone
	@$(PYTEST) -n 4 tests/impl/runtime tests/impl/store \
		tests/conformance/test_schedule.py tests/conformance/test_schedules.py

test-deep: $(READY) ## all of them with twenty times the random histories, for a night
	@CANCELMARK_TESTS=deep $(PYTEST) -n 4 --timeout 14400

mutants: $(READY) ## change the protocol in small ways, and see a test fail each time: specs/mutation.md (an hour)
	@CANCELMARK_TESTS=all PYTHONPATH=tests nice $(BIN)/python tests/tools/mutants.py

soak: $(READY) ## 500 readers and 50 writers on one server for ten minutes: memory, descriptors and log stay flat
	@PYTHONPATH=tests nice $(BIN)/python tests/tools/soak.py

chaos: $(READY) ## three servers on one PostgreSQL, every fault for ten minutes (SECONDS=60): nothing is lost
	@PYTHONPATH=tests nice $(BIN)/python tests/tools/chaos.py --seconds $(or $(SECONDS),600)

simulate: $(READY) ## clusters in one deterministic loop, every single fault (RUN="cancel --choices 5:6" plays one run)
	@PYTHONPATH=tests $(BIN)/python tests/tools/simulate.py $(RUN)

cluster: $(READY) ## three servers and a PostgreSQL on this machine, and a failover to look at (Ctrl-C stops)
	@PYTHONPATH=tests $(BIN)/python tests/tools/cluster.py

lint: $(READY) ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/mypy

diagrams: specs ## draw the diagrams in specs/diagrams

specs: $(READY) ## write everything in specs/ and docs/ that is generated
	@PYTHONPATH=tests $(BIN)/python -m tools.specs
	@PYTHONPATH=tests $(BIN)/python tests/tools/conformance_page.py

family: $(READY) ## search every set of the family's features, into specs/family.md (some minutes)
	@PYTHONPATH=tests $(BIN)/python -m tools.specs.family

serve: review ## look at the review in a browser (this machine only)
	@echo "serving the review at http://127.0.0.1:8000/review.html (Ctrl-C stops)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(REVIEW) 8000

power: $(READY) ## which tier notices each seeded bug and mutant, and how soon: specs/power.md (MUTANTS=all SEED=NUMBER; MUTANTS=0 leaves out mutants)
	@PYTHONPATH=tests nice $(BIN)/python tests/tools/noticed.py --mutants $(or $(MUTANTS),200) --seed $(SEED)
	@PYTHONPATH=tests nice $(BIN)/python tests/tools/power.py

notebooks: $(READY) ## run the course, and write it as pages: build/notebooks/1_the_race.html
	@$(BIN)/python tests/tools/course.py -o build/notebooks

lab: $(LAB) ## open the course in JupyterLab, to be worked through
	@$(BIN)/jupyter lab --notebook-dir=notebooks --LabApp.app_settings_dir=notebooks/.lab $(ROOT)

$(LAB): $(READY)
	@echo "installing JupyterLab into $(VENV), once"
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --constraint constraints.txt --editable '.[lab]'
	@touch $@

bench: $(READY) ## measure every figure again, into bench/RESULTS.md (BASELINE=e117825 ONLY=server ROUNDS=3)
	@$(BIN)/python -m cancelmark.bench $(ONLY) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(BASELINE),--baseline $(BASELINE)) \
		-o bench/RESULTS.md

field: $(READY) ## judge agents and servers that we did not write, from npm and PyPI, into specs/field (an hour; ONLY=NAME, FROM=NAME, LOADED=1)
	@$(BIN)/python -m examples.field $(if $(FROM),--from $(FROM)) $(if $(LOADED),--loaded) $(if $(CACHE),--cache $(CACHE)) $(ONLY)

field-again: $(READY) ## play the findings of specs/field again, on the agents that are installed: which show? (10 minutes)
	@$(BIN)/python -m examples.field --again $(if $(CACHE),--cache $(CACHE)) $(ONLY)

constraints: $(READY) ## pin the versions that are installed now
	@{ echo "# Exact versions of everything that make installs; 'make constraints' writes this file anew."; \
		$(BIN)/python -m pip freeze --exclude-editable; } > constraints.txt

clean: ## remove what make made
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
