"""Names of architectures and of their options, read from the text of their modules.

Importing the modules takes longer than a shell may wait for words to complete.
"""

from __future__ import annotations

import ast
import functools
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perfmodel.base.errors import spelling

PACKAGE = __name__.partition(".")[0]
ROOT = Path(__file__).parents[1]


class Described(NamedTuple):
    """An option: its name, the words that it may be (none: any value), and its meaning."""

    name: str
    words: tuple[str, ...]
    help: str


def architectures() -> dict[str, str]:
    """The module's name of each architecture, by its name and by its aliases."""
    shared = _call("architectures.registry", "SHARED")
    others = ast.literal_eval(shared.args[0]) if shared is not None else ()
    found = {}
    for _, name, _ in sorted(pkgutil.iter_modules([str(ROOT / "architectures")])):
        if name in others:
            continue
        found[name] = name
        made = _call(f"architectures.{name}", "ARCHITECTURE")
        for keyword in made.keywords if made is not None else ():
            if keyword.arg == "aliases":
                found |= dict.fromkeys(ast.literal_eval(keyword.value), name)
    return found


def options(architecture: str) -> list[Described]:
    """The options of an architecture, by its name or an alias; none where none has that name."""
    named = {spelling(name): module for name, module in architectures().items()}
    module = named.get(spelling(architecture))
    if module is None:
        return []
    return list(_fields(f"architectures.{module}", "Options"))


@functools.cache
def _tree(module: str) -> ast.Module:
    """The syntax tree of a module of this package."""
    place = ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _call(module: str, name: str) -> ast.Call | None:
    """The call that makes a value of a module."""
    value = _value(module, name)[1]
    return value if isinstance(value, ast.Call) else None


def _value(module: str, name: str) -> tuple[str, ast.AST | None]:
    """What a name stands for in a module, and the module that says so: imports are followed."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return module, node.value
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _value(str(node.module).removeprefix(f"{PACKAGE}."), alias.name)
    return module, None


def _fields(module: str, name: str) -> Iterator[Described]:
    """The options of a class, after those of the classes it inherits from."""
    module, node = _value(module, name)
    if not isinstance(node, ast.ClassDef):
        return
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _fields(module, base.id)
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            words, text = _annotation(module, field.annotation)
            yield Described(field.target.id, words, text)


def _by_cluster(option: ast.Call) -> tuple[str, ...]:
    """The words of an option that stand for values of a job's cluster."""
    given = (ast.literal_eval(k.value) for k in option.keywords if k.arg == "by_cluster")
    return tuple(word for words in given for word in words)


def _annotation(module: str, node: ast.AST | None) -> tuple[tuple[str, ...], str]:
    """The words that an option may be, and its meaning, from its annotation."""
    if isinstance(node, ast.Name):
        if node.id == "bool":
            return ("true", "false"), ""
        return _annotation(*_value(module, node.id))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Literal":
            return tuple(str(p.value) for p in parts if isinstance(p, ast.Constant)), ""
        if node.value.id == "Annotated" and isinstance(parts[1], ast.Call):
            words = _annotation(module, parts[0])[0] + _by_cluster(parts[1])
            return words, str(ast.literal_eval(parts[1].args[0]))
    return (), ""
