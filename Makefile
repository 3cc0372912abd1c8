# `make` lists the targets. Each builds .venv when pyproject.toml or constraints.txt changed, so a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE  # where it is set, each of a thousand processes would compile all of attnlab again

.DEFAULT_GOAL := help
include sweeps/gpu.mk
.PHONY: help experiment test test-rare test-all fuzz survive claims lint docs tour calibration pins clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

experiment: .venv/run  ## run gqa_vs_mha on its first text (five to six minutes on two cores) and print its verdict
	$(BIN)/python -m attnlab +experiment=gqa_vs_mha 'corpora=[pydocs]'

test: .venv/dev  ## run the tests, but for those that are rare
	$(BIN)/python -m pytest -n 2 -m "not rare"

test-rare: .venv/dev  ## run a sample of the long ones: experiments, kills at random, a browser, SLURM, Ray
	$(BIN)/python -m pytest -n 3 --dist worksteal -m rare --durations=60

test-all: .venv/dev  ## run all tests, the long ones with all their cases: an hour and more on two cores
	ATTNLAB_TESTS=all $(BIN)/python -m pytest -n 2 -m "not rare"
	ATTNLAB_TESTS=all $(BIN)/python -m pytest -n 3 --dist worksteal -m rare --durations=60

fuzz: .venv/dev  ## plan 2,000 command lines drawn by lot: each is refused in one line, or trains two steps
	FUZZ=2000 $(BIN)/python -m pytest -m rare tests/fuzz

survive: .venv/dev  ## kill sweeps at random for some minutes and compare every bit
	ATTNLAB_TESTS=all $(BIN)/python -m pytest tests/sweep/test_resume_after_kills.py

claims: .venv/run  ## run again what references found exact or clearly apart, as much as 15 minutes suffice for; fails where it is no longer so
	$(BIN)/python -m attnlab claims reports/reference logger=none

lint: .venv/dev  ## check style, the direction of imports, and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy attnlab hydra_plugins

docs: .venv/docs  ## build the site into build/docs/site and follow each of its links
	$(BIN)/python .ci/site

tour: .venv/dev  ## run docs/tour.ipynb and keep in it what its cells show
	$(BIN)/python .ci/site/notebook.py docs/tour.ipynb

calibration: .venv/dev  ## draw sweeps and ladders whose truth is known and write how often their verdicts are wrong
	$(BIN)/python .ci/calibration/calibration.py > calibration.new && mv calibration.new docs/calibration.md
	$(BIN)/python .ci/calibration/calibration_ladders.py > calibration.new && mv calibration.new docs/calibration_ladders.md

pins:  ## write constraints.txt from .venv, once the tests have passed in it
	$(BIN)/python .ci/pins > constraints.new && mv constraints.new constraints.txt

clean:  ## remove the virtual environment; runs and reports stay
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
