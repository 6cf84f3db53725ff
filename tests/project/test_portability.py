"""The package uses nothing that only some operating systems have, unless it asks first."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfmodel.base import files

ROOT = Path(__file__).parents[2]

MODULES = (
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "syslog",
    "termios",
    "tty",
)
"""Modules of the standard library that Windows lacks."""

NAMES = {
    "os": "WEXITSTATUS WIFEXITED chown chroot confstr ctermid eventfd fchdir fchmod fchown fork "
    "forkpty fpathconf fstatvfs getegid geteuid getgid getgroups getloadavg getpgid getpgrp "
    "getpriority getresuid getsid getuid initgroups killpg lchmod lchown lockf major "
    "makedev memfd_create minor mkfifo mknod nice openpty pathconf pipe2 posix_fadvise "
    "posix_fallocate posix_spawn pread preadv pwrite pwritev readv register_at_fork "
    "sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid setgid setgroups "
    "setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp tcsetpgrp "
    "ttyname uname wait wait3 wait4 waitid writev",
    "signal": "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 "
    "SIGWINCH SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause pthread_kill "
    "pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait",
    "socket": "AF_PACKET AF_UNIX MSG_DONTWAIT SO_REUSEPORT socketpair",
    "time": "clock_gettime clock_settime pthread_getcpuclockid tzset",
}
"""Names that Windows lacks, or macOS too, by module."""

ONLY = {module: set(names.split()) for module, names in NAMES.items()}


def asked_for(test: ast.expr) -> set[str]:
    """The names that a condition asks for by ``hasattr``."""
    return {
        each.args[1].value
        for each in ast.walk(test)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Name)
        and each.func.id == "hasattr"
        and isinstance(each.args[1], ast.Constant)
    }


def without_asking(node: ast.AST, guards: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names of one system below a node that are used outside ``if hasattr(...)``.

    A question for a function also covers the constants among the arguments of its call.
    """
    if isinstance(node, ast.If):
        inside = guards | asked_for(node.test)
        yield from without_asking(node.test, guards)
        for each in node.body:
            yield from without_asking(each, inside)
        for each in node.orelse:
            yield from without_asking(each, guards)
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        name = f"{node.value.id}.{node.attr}"
        if node.attr in ONLY.get(node.value.id, ()) and node.attr not in guards:
            yield f"{node.lineno}: {name}"
    if isinstance(node, ast.Import):
        yield from (f"{node.lineno}: {one.name}" for one in node.names if one.name in MODULES)
    if isinstance(node, ast.ImportFrom) and not node.level:
        if node.module in MODULES:
            yield f"{node.lineno}: {node.module}"
        only = ONLY.get(node.module or "", set())
        yield from (
            f"{node.lineno}: {node.module}.{one.name}" for one in node.names if one.name in only
        )
    call = node.func if isinstance(node, ast.Call) else None
    if isinstance(call, ast.Attribute) and call.attr in guards:
        guards = guards | ONLY.get(getattr(call.value, "id", ""), set())
    for each in ast.iter_child_nodes(node):
        yield from without_asking(each, guards)


def without_encoding(tree: ast.AST) -> Iterator[str]:
    """Calls that open a file as text in the encoding of the machine, which on Windows is not
    UTF-8."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        path = isinstance(node.func, ast.Attribute)
        words = [each.value for each in node.args if isinstance(each, ast.Constant)]
        words += [str(each.value.value) for each in node.keywords if _is_mode(each)]
        binary = any(isinstance(word, str) and "b" in word for word in words)
        named = any(each.arg == "encoding" for each in node.keywords)
        text = name == "open" and not binary and (path or isinstance(node.func, ast.Name))
        owner = getattr(getattr(node.func, "value", None), "id", "")
        if owner in ("gzip", "zipfile", "tarfile", "os", "webbrowser", "Image"):
            text = False
        if name in ("read_text", "write_text"):
            text = owner not in ("formatter",)
        if text and not named:
            yield f"{node.lineno}: {name}"


def _is_mode(word: ast.keyword) -> bool:
    return word.arg == "mode" and isinstance(word.value, ast.Constant)


SUSPECT = re.compile(
    rf"(import|from) +({'|'.join([*MODULES, *NAMES])})\b|\b({'|'.join(NAMES)})\.|"
    r"open\(|(read|write)_text\("
)


def places(source: str) -> list[str]:
    """Line and name of what not all systems have; a source without a suspect word is not parsed."""
    if not SUSPECT.search(source):
        return []
    tree = ast.parse(source)
    return [*without_asking(tree), *without_encoding(tree)]


@pytest.mark.slow
def test_other_systems_are_asked_first() -> None:
    found = []
    for path in sorted((ROOT / "perfmodel").rglob("*.py")):
        found += [f"{path.relative_to(ROOT)}:{place}" for place in places(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os\nos.fchown(1, 2, 3)", ["2: os.fchown"]),
        ("import fcntl", ["1: fcntl"]),
        ("from fcntl import flock", ["1: fcntl"]),
        ("from os import fork", ["1: os.fork"]),
        ("if hasattr(os, 'fchmod'):\n    os.fchown(1, 2, 3)", ["2: os.fchown"]),
        ("if hasattr(os, 'fork'):\n    pass\nelse:\n    os.fork()", ["4: os.fork"]),
        ("Path('a').read_text()", ["1: read_text"]),
        ("Path('a').open('w')", ["1: open"]),
        ("open('a')", ["1: open"]),
    ],
)
def test_canary_a_name_of_one_system_is_noticed(code: str, expected: list[str]) -> None:
    assert places(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "if hasattr(os, 'fchown'):\n    os.fchown(1, 2, 3)",
        "if hasattr(signal, 'pthread_sigmask'):\n    signal.pthread_sigmask(signal.SIG_BLOCK, {})",
        "Path('a').open('rb')",
        "Path('a').read_text(encoding='utf-8')",
        "os.getpid()",
    ],
)
def test_what_all_systems_have_passes(code: str) -> None:
    assert places(code) == []


def test_a_file_is_replaced_where_there_are_no_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fchown", "fchmod"):
        monkeypatch.delattr(os, name, raising=False)
    place = tmp_path / "a.json"
    place.write_text("before", encoding="utf-8")
    files.write(place, b"after")
    assert place.read_bytes() == b"after"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_checkout_on_windows_has_the_same_bytes() -> None:
    text = (ROOT / ".gitattributes").read_text(encoding="utf-8")
    assert "* text=auto eol=lf" in text.splitlines()
    script = (ROOT / ".ci" / "run").read_bytes()
    assert script.startswith(b"#!/usr/bin/env bash\n")
    assert b"\r" not in script


NUMPY_2 = (
    r"\b(?:np|numpy)\.(?:acosh?|asinh?|atan[2h]?|astype|bitwise_(?:count|invert|left_shift)|concat|"
    r"cumulative_(?:prod|sum)|isdtype|matrix_transpose|matvec|permute_dims|pow|trapezoid|"
    r"unique_(?:all|counts|inverse|values)|unstack|vecdot|vecmat)\b"
)
"""Functions that the lowest NumPy which pyproject.toml allows does not have."""


def test_the_package_calls_nothing_that_only_numpy_2_has() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "perfmodel").rglob("*.py"))
        for name in re.findall(NUMPY_2, path.read_text(encoding="utf-8"))
    ]
    assert found == []
    assert '"numpy>=1.' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["np.trapezoid(y, x)", "numpy.vecdot(a, b)", "np.pow(2, n)"])
def test_canary_names_of_numpy_2_are_noticed(text: str) -> None:
    assert len(re.findall(NUMPY_2, text)) == 1
    assert re.findall(NUMPY_2, "np.power(2, n) + np.concatenate(parts)") == []
