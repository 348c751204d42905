# make run     set up what is missing, get the models, serve  (PORT=8080)
# make test    set up, with the tools of development, and run the tests of ten minutes  (ARGS="-k name")
# make test-all  every test: also browsers, GPU kernels in an interpreter, whole processes, benches
# make test-clients  stock clients of others against the service, each in its own environment
# make test-wheel  the wheel from the package index in an empty environment: install, serve, talk
# make test-ray  the service on a Ray cluster of three nodes on this machine, in its own environment;
#                where there is a redis-server, with a Redis as well
# make soak    callers for half an hour; fails where anything grows  (MINUTES=30 CALLERS=3 LOAD=0.6)
# make check   formatting, lint, types, licences
# make fuzz    fuzz what reads foreign bytes, every target in turn  (MINUTES=30)
# make audit   known vulnerabilities of the pinned packages; asks PyPI
# make sbom    the bill of materials (CycloneDX) of the environment, in build/sbom.cdx.json
# make docs    the documentation as a site, in build/docs/index.html
# make setup   set up, with the tools of development, and no more
# make models  set up and get the models, without serving
# make help    this text
# make clean   remove the environments; the models in ~/.halfsec stay
#
# MINUTES=30             how long to fuzz or soak
# JOBS=3                 processes that test side by side; 0: one test after another. Calls last as long
#                        as they do: on two cores two of them leave a third of the time unused.
# PYTHON=python3.12      the interpreter to build the environment with (3.11 or newer)
# PRESET=cpu             the preset to fetch the models of and to serve
# TORCH_INDEX=URL        where to take torch from, where it is needed; without it pip's settings decide

# The first interpreter that runs and is new enough; if none is, the set-up says so.
ifndef PYTHON
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$name -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$name && exit; done; echo python3)
endif
VENV := .venv
RAY_VENV := .venvs/ray
TORCH_INDEX ?=
ARGS ?=
JOBS ?= 3
MINUTES ?= 30
CALLERS ?= 3
LOAD ?= 0.6
TIER = -m "not slow and not browser"
# More processes than cores, whose threads would wait for each other: a tenth of the time of torch's.
ONE_THREAD = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export PORT
ifdef PRESET
export HALFSEC_AGENT__PRESET := $(PRESET)
endif

BOOTSTRAP = $(PYTHON) -m agent.cli.setup.bootstrap $(VENV) --torch-index "$(TORCH_INDEX)"
DEV = --extra dev --extra piper --extra otel --extra jwt --extra mcp --extra postgres --extra redis \
	--extra webrtc --extra languages

.PHONY: run setup test test-all test-clients test-wheel test-ray soak check fuzz audit sbom docs models \
	clean help

run:
	@$(BOOTSTRAP) --serve
	@exec $(VENV)/bin/halfsec serve

models:
	@$(BOOTSTRAP) --serve
	@$(VENV)/bin/halfsec models fetch

setup:
	@$(BOOTSTRAP) $(DEV)

test:
	@$(BOOTSTRAP) $(DEV)
	@HALFSEC_AGENT__PRESET=embedded $(VENV)/bin/halfsec models fetch
	HF_HUB_OFFLINE=1 $(ONE_THREAD) $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile \
		--no-loadscope-reorder $(TIER) $(ARGS)

test-all:
	@$(MAKE) --no-print-directory test TIER=

test-clients:
	@$(BOOTSTRAP) $(DEV)
	@env -u HALFSEC_CLIENTS HALFSEC_AGENT__PRESET=embedded $(VENV)/bin/halfsec models fetch
	HF_HUB_OFFLINE=1 $(VENV)/bin/python -m pytest tests/clients/run_clients.py \
		tests/clients/run_conformance.py tests/clients/run_browser.py $(ARGS)

test-wheel:
	@$(BOOTSTRAP) $(DEV)
	HF_HUB_OFFLINE=1 $(VENV)/bin/python -m pytest -s tests/run_wheel.py $(ARGS)

test-ray:
	@$(PYTHON) -m agent.cli.setup.bootstrap $(RAY_VENV) --extra ray --extra redis
	@$(RAY_VENV)/bin/python -m pip install --quiet -c constraints.txt \
		pytest pytest-asyncio pytest-timeout
	HF_HUB_OFFLINE=1 $(RAY_VENV)/bin/python -m pytest -s -W default --disable-warnings \
		tests/ray/run_ray.py tests/ray/run_ray_redis.py $(ARGS)

soak:
	@$(BOOTSTRAP) --serve
	@$(VENV)/bin/halfsec models fetch
	$(VENV)/bin/halfsec bench soak tests/recordings --minutes $(MINUTES) --callers $(CALLERS) \
		--load $(LOAD) --dir build/soak-$$(date +%Y%m%dT%H%M%S) $(ARGS)

check:
	@$(BOOTSTRAP) $(DEV)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m tests.support.browser.check_types
	$(VENV)/bin/halfsec licences --check >/dev/null

fuzz:
	@$(BOOTSTRAP) $(DEV)
	HF_HUB_OFFLINE=1 nice -n 15 $(VENV)/bin/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)

# Their tools stand in an environment of their own: they are no part of what they look at.
.audit/bin/pip-audit: constraints.txt
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet -c constraints.txt pip-audit cyclonedx-bom
	@touch $@

audit: .audit/bin/pip-audit
	@$(PYTHON) -m tests.support.supply_chain.audit $<

sbom: .audit/bin/pip-audit
	@$(BOOTSTRAP) --serve
	@$(VENV)/bin/python -m tests.support.supply_chain.sbom .audit/bin/cyclonedx-py \
		$(VENV)/bin/python build/sbom.cdx.json

docs:
	@$(BOOTSTRAP) --extra docs
	$(VENV)/bin/python -m docs.generate build/docs-source
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet --strict
	$(VENV)/bin/python -m docs.generate.offline build/docs
	@echo "build/docs/index.html (with search: python3 -m http.server -d build/docs)"

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//; p' $(firstword $(MAKEFILE_LIST))

clean:
	rm -rf $(VENV) $(RAY_VENV) .clients .audit .mypy_cache .pytest_cache .ruff_cache .hypothesis
