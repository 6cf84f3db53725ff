.PHONY: setup check test docs outputs bench mutants

BIN := .venv/bin

setup:
	python3 -m venv .venv
	$(BIN)/pip install -e '.[dev,docs]'

check: test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test:
	$(BIN)/pytest -n auto

docs:
	$(BIN)/python -m sphinx -W --keep-going -q docs build/site
	@echo build/site/index.html

outputs:
	PERFMODEL_UPDATE_OUTPUTS=1 $(BIN)/pytest -m "slow or not slow" tests/project/test_docs.py tests/project/test_quotes.py tests/project/test_schemas.py tests/project/test_examples.py tests/project/test_notebooks.py

bench:
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.engine

mutants:
	$(BIN)/pip install -q -e '.[mutation]'
	nice -n 10 $(BIN)/python -m tests.mutants
