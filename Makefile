# `make` lists the targets. Each builds .venv when pyproject.toml or constraints.txt changed, so a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE  # otherwise each of a thousand processes would compile all of attnlab

.DEFAULT_GOAL := help
include sweeps/gpu.mk
.PHONY: help experiment test test-rare test-all fuzz survive claims lint ledger docs tour calibration pins clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

experiment: .venv/run  ## run gqa_vs_mha on its first corpus (five to six minutes on two cores) and print its verdict
	$(BIN)/python -m attnlab +experiment=gqa_vs_mha 'corpora=[pydocs]'

test: .venv/dev  ## run all tests except rare ones
	$(BIN)/python -m pytest -n 2 -m "not rare"

test-rare: .venv/dev  ## run a sample of the long tests: experiments, random kills, browser, SLURM, Ray
	$(BIN)/python -m pytest -n 3 --dist worksteal -m rare --durations=60

test-all: .venv/dev  ## run all tests, the long ones with all their cases: more than an hour on two cores
	ATTNLAB_TESTS=all $(BIN)/python -m pytest -n 2 -m "not rare"
	ATTNLAB_TESTS=all $(BIN)/python -m pytest -n 3 --dist worksteal -m rare --durations=60

fuzz: .venv/dev  ## try 2,000 random command lines and 5,000 mutated files: each gives one line, or works; nothing else changes
	FUZZ=2000 FUZZ_ATTEMPTS=5000 $(BIN)/python -m pytest -m rare tests/fuzz

survive: .venv/dev  ## kill sweeps at random for some minutes and compare their results bit for bit
	ATTNLAB_TESTS=all $(BIN)/python -m pytest tests/sweep/test_resume_after_kills.py

claims: .venv/run  ## replicate the exact and the clear results of the references, as many as fit in 15 minutes; fails if one differs
	$(BIN)/python -m attnlab claims reports/reference logger=none

lint: .venv/dev  ## check style, wording, spelling, the direction of imports, and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/wording
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy attnlab benchmarks hydra_plugins

ledger: .venv/dev  ## write reports/reference/README.md and ledger.html from the reports beside them
	$(BIN)/python .ci/site/ledger.py

docs: .venv/docs  ## build the site in build/docs/site and check its links
	$(BIN)/python .ci/site

tour: .venv/dev  ## run docs/tour.ipynb and store the output of its cells
	$(BIN)/python .ci/site/notebook.py docs/tour.ipynb

calibration: .venv/dev  ## simulate sweeps, ladders and runs from elsewhere with known truth and write the error rates of their verdicts
	$(BIN)/python .ci/calibration/calibration.py > calibration.new && mv calibration.new docs/calibration.md
	$(BIN)/python .ci/calibration/calibration_ladders.py > calibration.new && mv calibration.new docs/calibration_ladders.md
	$(BIN)/python .ci/calibration/calibration_budgets.py > calibration.new && mv calibration.new docs/calibration_budgets.md
	$(BIN)/python .ci/calibration/calibration_files.py > calibration.new && mv calibration.new docs/calibration_files.md

pins:  ## write constraints.txt from .venv, after the tests passed in it
	$(BIN)/python .ci/pins > constraints.new && mv constraints.new constraints.txt

clean:  ## remove the virtual environment; keep runs and reports
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/run: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e .
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e ".[dev]"
	@touch $@ .venv/run

.venv/docs: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e ".[docs]"
	@touch $@ .venv/run
