"""Modules, functions and parameter lists stay small enough to read in one go.

A room has at most 7,000 lines, a module of the package at most 500, a function at most 80, and a
function at most 8 parameters, ``self`` and ``cls`` not counted. A function may exceed a limit if
its docstring (for ``__init__``, that of the class) explains it in a sentence with the words "lines
because" or "parameters because". The parameters of a click command are its options, and are not
counted.
An adapter of a source of measured runs has at most 149.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import perfmodel
from benchmarks.accuracy import sources

MOST_MODULE_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 500, 80, 8

MOST_ADAPTER_LINES = 149
MOST_ROOM_LINES = 7000

PACKAGE = Path(perfmodel.__file__).parent

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, docstring: str = "") -> Iterator[tuple[str, Function, str]]:
    """Name within the module, definition and docstring of each function, nested ones included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            own = ast.get_docstring(child) or ""
            yield child.name, child, docstring if child.name == "__init__" else own
            inner = functions(child)
        elif isinstance(child, ast.ClassDef):
            inner = functions(child, ast.get_docstring(child) or "")
        else:
            yield from functions(child, docstring)
            continue
        yield from ((f"{child.name}.{name}", each, text) for name, each, text in inner)


def is_command(function: Function) -> bool:
    """Return whether a function is a click command."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("command", "group")
        for call in function.decorator_list
    )


def parameters(function: Function) -> list[str]:
    """Names of all parameters except ``self`` and ``cls``."""
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [a.arg for a in (given.vararg, given.kwarg) if a is not None]
    return [name for name in names if name not in ("self", "cls")]


def too_large(texts: Mapping[str, str], most: int = MOST_MODULE_LINES) -> list[str]:
    """Names that exceed a limit without an explanation, by module name without the package."""
    found = []
    for module, source in texts.items():
        lines = len(source.splitlines())
        if lines > most:
            found.append(f"{module}: {lines} lines")
        for name, function, docstring in functions(ast.parse(source)):
            text = " ".join(docstring.split())
            assert function.end_lineno is not None
            lines = function.end_lineno - function.lineno + 1
            if lines > MOST_FUNCTION_LINES and "lines because" not in text:
                found.append(f"{module}.{name}: {lines} lines")
            count = len(parameters(function))
            if count > MOST_PARAMETERS and "parameters because" not in text:
                if is_command(function):
                    continue
                found.append(f"{module}.{name}: {count} parameters")
    return found


def package_sources() -> dict[str, str]:
    """Source of each module, by name without the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_modules_functions_and_parameter_lists_are_small() -> None:
    assert too_large(package_sources()) == []


def large_rooms(texts: Mapping[str, str], most: int = MOST_ROOM_LINES) -> list[str]:
    """Rooms of more than ``most`` lines."""
    lines: Counter[str] = Counter()
    for module, source in texts.items():
        lines[module.partition(".")[0]] += len(source.splitlines())
    return [f"{room}: {count} lines" for room, count in sorted(lines.items()) if count > most]


def test_rooms_can_be_known() -> None:
    assert large_rooms(package_sources()) == []


def test_canary_a_large_room_is_reported() -> None:
    rooms = {"small.a": "pass\n" * 4, "large.a": "pass\n" * 3, "large.b": "pass\n" * 2}
    assert large_rooms(rooms, 4) == ["large: 5 lines"]


def test_adapters_only_map_rows() -> None:
    folder = Path(sources.__file__).parent
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in sources.SOURCES}
    assert too_large(texts, MOST_ADAPTER_LINES) == []
    assert too_large(texts, min(len(text.splitlines()) for text in texts.values()))  # canary


def long_function(lines: int, docstring: str = "Do it.") -> str:
    return "\n".join(["def f():", f'    """{docstring}"""', *["    pass"] * (lines - 2)])


def wide_function(count: int, docstring: str = "Do it.") -> str:
    names = ", ".join(f"p{i}" for i in range(count))
    return f'def f({names}):\n    """{docstring}"""'


WHY_LONG = "It has this many\n    lines because it is a table."
WHY_WIDE = "It has this many parameters because each is a column."


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("pass\n" * 500, []),
        ("pass\n" * 501, ["m: 501 lines"]),
        (long_function(80), []),
        (long_function(81), ["m.f: 81 lines"]),
        (long_function(81, WHY_LONG), []),
        (long_function(81, WHY_WIDE), ["m.f: 81 lines"]),
        (wide_function(8), []),
        (wide_function(9), ["m.f: 9 parameters"]),
        (wide_function(9, WHY_WIDE), []),
        (wide_function(9, WHY_LONG), ["m.f: 9 parameters"]),
        (f"async {wide_function(9)}", ["m.f: 9 parameters"]),
        ("def f(a, b, *c, d, e, f, g, h, **i): pass", ["m.f: 9 parameters"]),
        ("@cli.command()\ndef f(a, b, c, d, e, f, g, h, i): pass", []),
        ("@cached\ndef f(a, b, c, d, e, f, g, h, i): pass", ["m.f: 9 parameters"]),
        (
            "def g():\n    if True:\n        def f(a, b, c, d, e, f, g, h, i): pass",
            ["m.g.f: 9 parameters"],
        ),
        (
            "class A:\n    def __init__(self, a, b, c, d, e, f, g, h, i): pass",
            ["m.A.__init__: 9 parameters"],
        ),
        ("class A:\n    def f(self, a, b, c, d, e, f, g, h): pass", []),
        (
            f'class A:\n    """{WHY_WIDE}"""\n'
            "    def __init__(self, a, b, c, d, e, f, g, h, i): pass",
            [],
        ),
        (
            f'class A:\n    """{WHY_WIDE}"""\n    def f(self, a, b, c, d, e, f, g, h, i): pass',
            ["m.A.f: 9 parameters"],
        ),
    ],
)
def test_canary_oversized_definitions_are_reported(source: str, expected: list[str]) -> None:
    assert too_large({"m": source}) == expected
