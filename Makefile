# Every command of this project. `make` alone lists them; CI runs `make all`, then `make demo`.

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
RUNTIME_STAMP := $(VENV)/.runtime
PACKAGES_STAMP := $(VENV)/.packages
STAMP := $(VENV)/.set-up
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.set-up
FUZZ_VENV := .venv-fuzz
FUZZ_STAMP := $(FUZZ_VENV)/.set-up
SITE_VENV := .venv-site
SITE_STAMP := $(SITE_VENV)/.set-up
MUTANTS_VENV := .venv-mutants
MUTANTS_STAMP := $(MUTANTS_VENV)/.set-up
DIST_VENV := .venv-dist
DIST_STAMP := $(DIST_VENV)/.set-up
LOCK_VENV := .venv-lock

# The system's interpreter comes first: one from a version manager lives in a home directory that a
# sandboxed task, which runs as another user, may be unable to reach. PYTHON=... overrules.
PYTHON ?=
CANDIDATES := $(PYTHON) /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.14

TESTS ?= tests
SEEDS ?= 10
LABELLED_SEEDS ?= 5
FRAMES ?= 1000000
LIMITS ?= objects=4000
LIES ?= 1000000
LIES_OF_MEMBERS ?= 100000
PLAYS ?= 1000
FRAMES_OF_NODES ?= 200000
SEED ?=
SECONDS ?= 60
MINUTES ?= 30
INPUT ?=
ROUNDS ?= 500
PACKAGE ?= dios/core
MUTANTS ?= 300

export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo demo-evil test test-all test-extended lab docker fmt fmt-check lint type imports sim scale bench kept-bench fuzz fuzz-nodes fuzz-members fuzz-tasks fuzz-frames fuzz-linux fuzz-replay soak neighbours load crashtest chaos starved docs site changelog deniability screenshots dashboard-cost month up-test dist dist-test sbom release slurm-test charts upgrade-test all clean docker-test test-pythons runtime kernels mutants lock

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv and install DIOS and its laboratory into it, with what development needs.

runtime: $(RUNTIME_STAMP) ## Make .venv and install DIOS alone into it, for the demos; takes seconds.

# It shows the progress of each stage, and the next call continues an interrupted one.
SET_UP := tests/support/set_up.py
# The versions and hashes of all packages; LOCK= installs the newest that pyproject.toml allows.
LOCK := dev.lock
LOCKED := $(if $(LOCK),--lock $(LOCK))

# The runtime alone, which takes seconds.
$(RUNTIME_STAMP): pyproject.toml $(LOCK)
	@set -eu; \
	chosen=; \
	for python in $(CANDIDATES); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then chosen="$$python"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
		echo "DIOS needs Python 3.11 or newer and found none." >&2; \
		echo "On Debian or Ubuntu: apt install python3 python3-venv   (or: make setup PYTHON=/path/to/python3)" >&2; \
		exit 1; \
	fi; \
	if ! "$$chosen" -c 'import venv, ensurepip' 2>/dev/null; then \
		version=$$("$$chosen" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "$$chosen cannot make virtual environments: its modules venv and ensurepip are missing." >&2; \
		echo "On Debian or Ubuntu: apt install python3-venv   (or, for this version alone: python$$version-venv)" >&2; \
		exit 1; \
	fi; \
	"$$chosen" $(SET_UP) $(VENV) $(LOCKED) --editable .
	@touch $@

# While packages are replaced the runtime may be incomplete.
$(PACKAGES_STAMP): $(RUNTIME_STAMP) labs/pyproject.toml
	@rm -f $(RUNTIME_STAMP)
	@$(BIN)/python $(SET_UP) $(VENV) $(LOCKED) --editable . --editable ./labs --group dev
	@touch $(RUNTIME_STAMP) $@

# Compiled kernels are kept, so that a stopped compilation continues.
$(STAMP): $(PACKAGES_STAMP)
	@$(BIN)/python -m dios.firmament.compile_kernels
	@touch $@

# A changed kernel is compiled here, with its progress, and not unnoticed in the tests.
kernels: setup ## Compile the scheduler's kernels, unless they are compiled.
	@$(BIN)/python -m dios.firmament.compile_kernels

# The peers live in an environment of their own: what they pull in must not reach the product's.
$(BENCH_STAMP): $(STAMP)
	@$(BIN)/python $(SET_UP) $(BENCH_VENV) $(LOCKED) --editable . --editable './labs[bench]'
	@touch $@

# The guided fuzzer exists for some versions of Python only: without it the rest of fuzzing goes on.
$(FUZZ_STAMP): $(STAMP)
	@$(BIN)/python $(SET_UP) $(FUZZ_VENV) --editable . --group fuzz || \
		echo "atheris cannot be installed for this Python: the codec and the core are fuzzed without guidance only"
	@touch $@

# Of some packages that these two groups need there is no wheel, so no lock names them.
# The generator of mutants reads the sources without importing them, too.
$(MUTANTS_STAMP): $(STAMP) pyproject.toml
	@$(BIN)/python $(SET_UP) $(MUTANTS_VENV) --group mutants
	@touch $@

# The site's tools read the sources without importing them, so they need nothing of the product.
$(SITE_STAMP): $(STAMP) pyproject.toml
	@$(BIN)/python $(SET_UP) $(SITE_VENV) $(LOCKED) --group docs
	@touch $@

$(DIST_STAMP): $(STAMP) pyproject.toml
	@$(BIN)/python $(SET_UP) $(DIST_VENV) $(LOCKED) --editable . --group dist
	@touch $@

# One version of each package for all environments, so that the conditions of uv say nothing more.
CHOOSE := $(LOCK_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--only-binary :all: --generate-hashes --no-annotate --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
HOSTS_LOCK := dios/node/bringup/hosts.lock

# It needs no other environment: none can be made while a package is missing in the lock.
$(LOCK_VENV)/bin/uv:
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON) python3) $(SET_UP) $(LOCK_VENV) --lock dev.lock uv

lock: $(LOCK_VENV)/bin/uv ## Add to dev.lock and hosts.lock the packages that pyproject.toml names (UPGRADE=1: the newest versions of all).
	$(CHOOSE) --all-extras pyproject.toml --output-file $(HOSTS_LOCK)
	$(CHOOSE) --all-extras pyproject.toml labs/pyproject.toml --group dev --group docs --group dist --group build --group lock \
		--constraint $(HOSTS_LOCK) --no-emit-package dios-space --output-file dev.lock
	sed -i 's/ ;.*\\$$/ \\/' $(HOSTS_LOCK) dev.lock

demo: $(if $(UI),setup,runtime) ## Count the words of real files with sandboxed tasks (INPUT=path for yours, UI=1 with the dashboard).
	@$(BIN)/python examples/demo.py $(if $(INPUT),--input "$(INPUT)") $(if $(UI),--ui)

demo-evil: runtime ## Run a word count that tries to break out, and see what stops it.
	@$(BIN)/python -m examples.demo_evil

# One worker for each processor. All tests of a file run in the same worker, because they may share a node.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test: kernels ## Run the tests for every change, in minutes (TESTS=path for a part; WORKERS=0 without parallel workers).
	$(PYTEST) $(if $(WORKERS),--numprocesses $(WORKERS)) -m "not long and not extended" $(TESTS)

test-all: kernels ## Run these tests and the long ones, as CI does (TESTS, WORKERS).
	$(PYTEST) $(if $(WORKERS),--numprocesses $(WORKERS)) -m "not extended" $(TESTS)

test-extended: kernels ## Run every test, also what takes too long for CI: campaigns, broken cores (TESTS, WORKERS).
	$(PYTEST) $(if $(WORKERS),--numprocesses $(WORKERS)) $(TESTS)

mutants: $(MUTANTS_STAMP) kernels ## Plant MUTANTS (300) faults in PACKAGE=dios/core and count those that the tests in TESTS (default: its unit tests) detect (REPORT=file.md).
	@$(MUTANTS_VENV)/bin/python tests/mutants/generate.py $(PACKAGE) .mutants --mutants $(MUTANTS) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.mutants.run .mutants $(if $(filter command line,$(origin TESTS)),$(TESTS),$(PACKAGE:dios/%=tests/unit/%)) --package $(PACKAGE) $(if $(REPORT),--report $(REPORT))

test-pythons: setup ## Run the short suite on 3.12, 3.13 and 3.14 where they can be had (VERSIONS="3.14", DEBIAN=1, TESTS="tests" for all; MEASURE=3: compare them).
	@PYTHONPATH=. $(BIN)/python -m tests.lab.pythons $(if $(VERSIONS),--versions "$(VERSIONS)") $(if $(DEBIAN),--debian) $(if $(MEASURE),--measure $(MEASURE)) $(if $(filter command line,$(origin TESTS)),$(TESTS))

lab: setup ## Run real nodes on a network that fails in every way (root; SCALE=1: 16 nodes, RATES=1, GUARANTEES=1: a thin link, QUEUE=1: three users, PLAY=1: a prompt).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python $(if $(PLAY),-m tests.lab.play,$(if $(SCALE),-m tests.lab.scale,$(if $(RATES),-m tests.lab.rates,$(if $(GUARANTEES),-m tests.lab.guarantees,$(if $(QUEUE),-m tests.lab.shared_queue --minutes $(MINUTES),-m pytest tests/lab)))))

up-test: setup ## Run `dios up --hosts` on four ssh servers of this machine (root, sshd; INDEX=1: with wheels of the package index).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.lab.bringup_hosts $(if $(INDEX),--index)

slurm-test: setup ## Run `dios up --on slurm` on a Slurm of three nodes on this machine (root, slurmctld, slurmd, munge).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.lab.bringup_slurm

docker: setup ## Run cluster/compose.yaml for real, where an engine is (BASE=image, WHEELS=1 without a registry).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.lab.compose $(if $(BASE),--base $(BASE)) $(if $(WHEELS),--wheels) $(if $(KERNELS),--kernels)

docker-test: setup ## Do the same from nothing, with an engine in namespaces of its own (root; docker.io, docker-compose, debootstrap; KERNELS=1: until all are compiled; REPORT=file.md).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.lab.compose --engine $(if $(KERNELS),--kernels) $(if $(REPORT),--report $(REPORT))

fmt: setup ## Format the code and repair what the linter can repair.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

fmt-check: setup ## Say which files `make fmt` would change.
	$(BIN)/ruff format --check .

lint: setup ## Run the linter, the spelling checker, and the search for code that nothing uses.
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python -m pytest --quiet tests/unit/test_dead_code.py tests/unit/test_import_cycles.py

type: setup ## Check the types, strictly.
	$(BIN)/mypy

imports: setup ## Check that no layer imports a higher one.
	$(BIN)/lint-imports --no-cache

sim: setup ## Run the simulator over SEEDS seeds (default 10), then with a failing disk, every fault once, clusters, LABELLED_SEEDS (5) with secrecy labels, kept replicas, and the queue of the scheduler.
	$(BIN)/python -m labs.sim --seeds $(SEEDS)
	$(BIN)/python -m labs.sim --seeds $(SEEDS) --faults
	$(BIN)/python -m labs.sim --seeds 2 --every-operation
	$(BIN)/python -m labs.sim --seeds $(SEEDS) --cluster
	$(BIN)/python -m labs.sim --seeds $(SEEDS) --cluster --slow
	$(BIN)/python -m labs.sim --seeds $(LABELLED_SEEDS) --labels
	$(BIN)/python -m labs.sim --seeds $(SEEDS) --kept
	$(BIN)/python -m labs.sim --seeds $(SEEDS) --queues

scale: setup ## Print the costs of simulated clusters of up to 1,000 nodes (NODES="3 10 30" for others); slow.
	$(BIN)/python -m labs.benchmarks.scale $(if $(NODES),--nodes $(NODES))

bench: $(BENCH_STAMP) ## Measure DIOS and what one would use instead (ONLY=calls,streams for a part).
	@$(BENCH_VENV)/bin/python -m labs.benchmarks.run $(if $(ONLY),--only $(ONLY))

soak: $(BENCH_STAMP) ## Load one node for MINUTES (default 30) with random kills, and see that nothing grows; then `neighbours`.
	@$(BENCH_VENV)/bin/python -m labs.benchmarks.soak --minutes $(MINUTES)
	@$(MAKE) --no-print-directory neighbours

neighbours: SECONDS = 10
neighbours: setup ## Time an innocent client for SECONDS (10) next to each kind of greedy neighbour (ONLY=selects,deaf for a part).
	@$(BIN)/python -m labs.benchmarks.neighbours --seconds $(SECONDS) $(if $(ONLY),--only $(ONLY))

load: setup ## Put bursts of RUNS, NEEDS, CLIENTS and OBJECTS on three nodes (BUSY=1: also on busy processors, REPORT=file.md).
	@$(BIN)/python -m labs.benchmarks.load $(if $(RUNS),--runs $(RUNS)) $(if $(NEEDS),--needs $(NEEDS)) $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(OBJECTS),--objects $(OBJECTS)) $(if $(BUSY),--busy) $(if $(REPORT),--report $(REPORT))

kept-bench: REPORT = labs/benchmarks/results/kept-files.md
kept-bench: ROUNDS = 3
kept-bench: setup ## Compare put, sync, backup, tier and fsspec on three nodes with another installation (OLD=its python, ROUNDS=3, SHORT=1).
	@$(BIN)/python -m labs.benchmarks.kept_files --old "$(OLD)" --rounds $(ROUNDS) $(if $(SHORT),--short) --report "$(REPORT)"

fuzz: $(FUZZ_STAMP) ## Attack codec and core for SECONDS (60), a node with FRAMES (1000000), then cores with LIES of a node (1000000).
	@if $(FUZZ_VENV)/bin/python -c 'import atheris' 2>/dev/null; then \
		PYTHONPATH=.:tests/support/programs $(FUZZ_VENV)/bin/python -m tests.fuzz.coverage_guided --seconds $(SECONDS); \
	fi
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.run --frames $(FRAMES) $(if $(SEED),--seed $(SEED)) $(if $(LIMITS),--limits "$(LIMITS)")
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.dcp_run --messages $(LIES)

fuzz-nodes: setup ## Tell LIES (1000000) to cores in the name of a node with a certificate, then LIES_OF_MEMBERS (100000) to real nodes.
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.dcp_run --messages $(LIES) $(if $(SEED),--seed $(SEED))
	HOSTILE_FRAMES=$(FRAMES_OF_NODES) $(BIN)/python -m pytest --quiet tests/security/test_hostile_node_wire.py
	@$(MAKE) --no-print-directory fuzz-members LIES=$(LIES_OF_MEMBERS)

fuzz-members: LIES = $(LIES_OF_MEMBERS)
fuzz-members: setup ## Tell LIES (100000) to three real nodes in the name of members (SEED=N PLAY=name repeats one, REPORT=file.md).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.members_run --lies $(LIES) $(if $(SEED),--seed $(SEED)) $(if $(PLAY),--play $(PLAY)) $(if $(REPORT),--report $(REPORT))

fuzz-tasks: setup ## Run PLAYS (1000) of hostile tasks with real memory and descriptors (SEED=N PLAY=name repeats one).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.tasks_run --plays $(PLAYS) $(if $(SEED),--seed $(SEED)) $(if $(PLAY),--play $(PLAY))

fuzz-frames: setup ## Send FRAMES (1000000) bad packets through network functions (SEED=N repeats a run, REPORT=file.md).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.packets_run --frames $(FRAMES) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

fuzz-linux: FRAMES = 100000
fuzz-linux: setup ## Compare network functions with nftables and TAYGA on FRAMES (100000) random frames (root, nftables, tayga; SEED=N, REPORT=file.md).
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.against_linux_run --frames $(FRAMES) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

fuzz-replay: setup ## Send the frames of FINDING=file to a fresh node.
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.fuzz.run --replay "$(FINDING)"

crashtest: setup ## Kill a real node ROUNDS times (default 500) under load, and see that it keeps its word.
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.crash.run --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

chaos: setup ## Let nodes fail for MINUTES (30) under load and check the clients' records; KEPT=1 ROUNDS=200: kept replicas.
	@PYTHONPATH=.:tests/support/programs $(BIN)/python -m tests.chaos.run $(if $(KEPT),--kept --rounds $(ROUNDS) $(if $(NODES),--nodes $(NODES)) $(if $(PROGRAMS),--programs $(PROGRAMS)) $(if $(FAULTS),--faults "$(FAULTS)"),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

starved: BUSY = 20
starved: setup ## Use nodes beside BUSY (20) busy loops, with processes stopped for 15 s (ONLY=word of a play, REPORT=file.md).
	@PYTHONPATH=. $(BIN)/python -m tests.starved.run --busy $(BUSY) $(if $(ONLY),--only "$(ONLY)") $(if $(REPORT),--report $(REPORT))

screenshots: setup ## Make the pictures of the dashboard in docs/pictures (needs chromium and chromedriver).
	@$(BIN)/python -m tests.support.web.screenshots

dashboard-cost: TASKS = 5000
dashboard-cost: setup ## Measure what a viewer of the dashboard costs three nodes with TASKS (5000) idle tasks (REPORT=file.md).
	@PYTHONPATH=. $(BIN)/python -m labs.benchmarks.dashboard --tasks $(TASKS) $(if $(REPORT),--report "$(REPORT)")

month: MINUTES = 60
month: setup ## Play a month of five nodes with kept data in MINUTES (60; REPORT=file.md): losses, a full disk, an upgrade, a restored backup.
	@$(BIN)/python -m labs.benchmarks.month --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

upgrade-test: setup ## Upgrade three nodes, one by one, from the package of OLD (a commit; HEAD) to this one, and use them meanwhile; then stopped ones of release 0.2.
	@PYTHONPATH=. $(BIN)/python -m tests.upgrade.run $(if $(OLD),--old $(OLD))
	@PYTHONPATH=. $(BIN)/python -m tests.upgrade.stopped

deniability: setup ## Time lookups of names of others against names of nothing, 10,000 of each.
	@$(BIN)/python -m labs.benchmarks.deniability

docs: setup ## Check that links, commands and listings in the documents are true.
	$(BIN)/python -m pytest --quiet tests/unit/test_docs.py
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs changelog.d

site: $(SITE_STAMP) ## Build the documentation with its API reference as a website: site/index.html.
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --quiet --strict

dist: $(DIST_STAMP) ## Build the source archive and the wheel into dist/, and check their contents and descriptions.
	@PYTHONPATH=. $(DIST_VENV)/bin/python -m tests.lab.package dist

dist-test: $(DIST_STAMP) ## Install the wheel of `make dist` into a new environment, and follow the README there.
	@PYTHONPATH=. $(DIST_VENV)/bin/python -m tests.lab.package try

sbom: $(DIST_STAMP) ## List the packages of an environment with the wheel of `make dist` in CycloneDX's format: dist/*.cdx.json.
	@PYTHONPATH=. $(DIST_VENV)/bin/python -m tests.lab.package sbom

release: $(DIST_STAMP) ## Write the hashes of the files in dist/ to dist/SHA256SUMS, and sign them with KEY=~/.ssh/id_ed25519.
	@PYTHONPATH=. $(DIST_VENV)/bin/python -m tests.lab.package release $(if $(KEY),--key "$(KEY)")

charts: $(DIST_STAMP) ## Check the files for Kubernetes, Helm and Docker Compose by the schemas of these programs.
	@PYTHONPATH=. $(DIST_VENV)/bin/python -m tests.lab.charts

changelog: setup ## Show what the next section of CHANGELOG.md will say (FOLD=1: write it, and remove the fragments).
	$(BIN)/towncrier build $(if $(FOLD),--yes,--draft) --version $$(awk -F '"' '/^version/ { print $$2; exit }' pyproject.toml)
	$(if $(FOLD),$(BIN)/python -m tests.support.changelog)

# Measuring is left out: its figures belong to a quiet machine, and no test asserts a time.
# The tests of the documents are part of test-all, and their spelling of lint.
all: fmt-check lint type imports site test-all sim ## Everything that CI checks.

clean: ## Remove what setup, tests and demo made.
	rm -rf $(VENV) $(BENCH_VENV) $(FUZZ_VENV) $(SITE_VENV) $(MUTANTS_VENV) $(DIST_VENV) $(LOCK_VENV) site .pythons .fuzz .mutants .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
