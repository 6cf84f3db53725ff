"""Runs a sample of mutants: changes to single expressions, which tests should notice.

``python -m tests.mutants [COUNT] [SEED]`` (``make mutants``) mutates the files named under
``tool.mutmut`` in pyproject.toml, draws COUNT mutants, and runs for each the tests that reach
the changed function. It prints those that no test noticed; ``mutmut show NAME`` shows one.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

COUNT, SEED = 200, 1
MUTMUT = Path(sys.executable).with_name("mutmut")
TIMES = Path("mutants/mutmut-stats.json")
NOTICED = ("killed", "timeout", "segfault")
"""Results of a mutant that a test fails for, or never ends with."""


def results() -> dict[str, str]:
    """Result of each mutant, by its name."""
    done = subprocess.run(
        [MUTMUT, "results", "--all", "true"], capture_output=True, text=True, check=True
    )
    lines = [line.strip().partition(": ") for line in done.stdout.splitlines()]
    return {name: result for name, colon, result in lines if colon}


def main(count: int = COUNT, seed: int = SEED) -> None:
    """Draw and run mutants, and print the score."""
    # runs none, as none is called that, but makes all of them and finds the tests that reach each
    subprocess.run([MUTMUT, "run", "--max-children", "1", "none"], check=False)
    if not TIMES.exists():
        sys.exit("some tests fail without any mutant")
    names = sorted(results())
    drawn = random.Random(seed).sample(names, len(names))[:count]
    subprocess.run([MUTMUT, "run", "--max-children", "1", *drawn], check=False)
    known = results()
    found = {name: known[name] for name in sorted(drawn)}
    for name, result in found.items():
        if result not in NOTICED:
            print(f"{result}: {name}")
    counts = Counter(found.values())
    tried = len(found) - counts["not checked"]
    noticed = sum(counts[result] for result in NOTICED)
    print(f"{noticed} of {tried} noticed ({noticed / max(tried, 1):.0%}), drawn from {len(names)}")
    print(dict(counts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Check that tests notice a sample of mutants."
    )
    parser.add_argument("count", nargs="?", type=int, default=COUNT, help="%(default)s")
    parser.add_argument("seed", nargs="?", type=int, default=SEED, help="%(default)s")
    main(**vars(parser.parse_args()))
