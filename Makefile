# Everything here works on a fresh clone with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
TOOLS := $(VENV)/tools/bin

.PHONY: run test test-long sim fuzz lint docs format tools bench bench-peers bench-churn bench-operators bench-replay
.PHONY: wheel sbom lock digests clean
COUNT ?= 1000000
MINUTES ?= 60
DEAD ?= 50000

run: $(RUNS)  ## start the gateway with config/dev.toml
	@echo "a receiver:  python3 deploy/example/receiver.py 9000"
	@echo "a webhook:   curl -i -d '{\"hello\": \"world\"}' http://127.0.0.1:8800/http://127.0.0.1:9000/hook"
	@echo "a page:      http://127.0.0.1:8801/"
	@exec $(BIN)/holdfast run --config config/dev.toml

# Six workers for two cores, since many tests wait for processes. They start a thousand, which must not compile their
# sources anew each time, whatever the environment says.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder

test: $(READY)  ## the whole suite
	$(PYTEST)

test-long: $(READY)  ## the same with more of it: restarts, kills, worlds, webhooks, scenarios on PostgreSQL
	HOLDFAST_LONG=1 $(PYTEST)

sim: $(READY)  ## worlds by chance until stopped; with SEED=... only that one
	$(BIN)/python -m tests.sim.explore $(if $(SEED),--seed $(SEED))

fuzz: $(READY)  ## the same bytes through both HTTP engines until stopped; with SEED=... only that round
	$(BIN)/python -m tests.support.http_fuzz $(if $(SEED),--seed $(SEED))

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check src tests docs
	$(BIN)/ruff format --check src tests docs
	$(BIN)/mypy

docs: $(READY)  ## what the docs take from the code: pictures and the config reference
	$(BIN)/python docs/generate

format: $(READY)
	$(BIN)/ruff check --fix src tests docs
	$(BIN)/ruff format src tests docs

# Nothing is installed that a lock does not name with its hash.
INSTALL = -m pip install --quiet --disable-pip-version-check --require-hashes

$(RUNS): requirements.lock requirements-build.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("holdfast needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -r requirements.lock -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(READY): requirements-dev.lock $(RUNS)
	$(BIN)/python $(INSTALL) -r requirements-dev.lock
	touch $@

tools: $(VENV)/tools/.ready  ## what holds the Dockerfile and deploy/ to their formats; their tests are skipped without

# In an environment of its own: httpx would import some of it, and the gateway with it.
$(VENV)/tools/.ready: requirements-tools.lock $(READY)
	$(PYTHON) -m venv $(VENV)/tools
	$(TOOLS)/python $(INSTALL) --no-compile -r requirements-tools.lock
	touch $@

BENCH = $(BIN)/python -m
BENCH_OPTIONS = $(if $(QUICK),--quick) $(if $(BACKLOG),--backlog $(BACKLOG)) $(if $(ONLY),--only $(ONLY)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(OUT),--out $(OUT))

bench: $(READY)  ## every figure as a ratio to the yardstick; QUICK=1, BACKLOG=, ONLY=, PAIRS=, OUT=
	$(BENCH) tests.bench.run $(BENCH_OPTIONS)

bench-peers: $(READY)  ## the same load on what is built instead: Redis and a queue; QUICK=1, ONLY=, OUT=
	$(BENCH) tests.bench.peers $(BENCH_OPTIONS)

bench-churn: $(READY)  ## what MINUTES of steady traffic leave behind in PostgreSQL
	$(BENCH) tests.bench.churn --minutes $(MINUTES)

bench-operators: $(READY)  ## what operators ask, with COUNT messages waiting and with none
	$(BENCH) tests.bench.operators $(COUNT)

bench-replay: $(READY)  ## dead replay of DEAD messages, interrupted and repeated
	$(BENCH) tests.bench.replay $(DEAD)

wheel: $(RUNS)  ## the wheel and the sdist, in dist/: the same sources give the same bytes
	$(BIN)/python -m hatchling build
	sha256sum dist/*.whl dist/*.tar.gz

SBOM = dist/holdfast.cdx.json

sbom: $(VENV)/tools/.ready  ## what runs, as CycloneDX in dist/: versions, hashes, licences; the date is that of the commit
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
	    $(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --no-validate $(VENV) \
	    | $(TOOLS)/python deploy/sbom.py requirements.lock $(SBOM)

# For each Python from 3.11 on and for each kind of machine at once, with the hashes of every file of a version.
LOCK = $(TOOLS)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --custom-compile-command 'make lock'

lock: $(VENV)/tools/.ready  ## resolve pyproject.toml anew and write what came out of it
	$(LOCK) pyproject.toml --extra fast --extra ed25519 --extra postgres --output-file requirements.lock
	$(LOCK) --group build --output-file requirements-build.lock
	$(LOCK) pyproject.toml --extra dev --group build --constraint requirements.lock --constraint requirements-build.lock \
	    --output-file requirements-dev.lock
	$(LOCK) --group tools --output-file requirements-tools.lock

IMAGES = Dockerfile deploy/compose/compose.yaml deploy/compose/fleet.yaml

digests:  ## ask the registry which images the tags in use stand for now, and write their digests
	for image in $$(grep --no-filename --only-matching '[^ ]*@sha256:' $(IMAGES) | sort --unique); do \
	    digest=$$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' $${image%@*}) || exit 1; \
	    sed --in-place "s|$$image[0-9a-f]*|$${image%@*}@$$digest|" $(IMAGES); \
	done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
