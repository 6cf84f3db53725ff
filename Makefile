.PHONY: setup check test docs bench

BIN := .venv/bin

setup:
	python3 -m venv .venv
	$(BIN)/pip install -e '.[dev]'

check: test
	$(BIN)/ruff check .
	$(BIN)/mypy

test:
	$(BIN)/pytest -n auto

docs:
	PERFMODEL_UPDATE_OUTPUTS=1 $(BIN)/pytest -m "slow or not slow" tests/project/test_docs.py tests/project/test_examples.py

bench:
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.engine
