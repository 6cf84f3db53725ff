"""Compiles the event loop with Cython and a C compiler, and makes source distributions that are
reproducible; all else stands in pyproject.toml.

Cython compiles one module at a time and C compilers inline within a file, so the modules of the
event loop are joined into one. Their annotations become C types: ``Id`` and ``int`` are 64 bits
wide, and a ``World`` is the address of a table of arrays.
"""

import ast
import contextlib
import gzip
import importlib
import os
import sys
import tarfile
from math import inf
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

TYPES = {"World": "World", "Id": "Id", "int": "Id", "float": "double", "bool": "cython.bint"}
TYPES |= {"None": "void", "f8": "double"}
TYPES |= {f"i{size}": f"int{8 * size}_t" for size in (1, 2, 4, 8)}
TYPES |= {"Refs": "int32_t*", "Ids": "int64_t*", "Floats": "double*"}
"""C types of annotations and of fields."""

FLAGS = [
    *("-O3", "-g0"),
    # results equal those of Python to the last bit: integers wrap around, and nothing is fused
    *("-fwrapv", "-ffp-contract=off"),
    # inline large functions too
    *("--param", "inline-unit-growth=1000", "--param", "max-inline-insns-single=1000"),
    *("--param", "large-function-growth=1000"),
]

HEAD = """\
# cython: language_level=3, infer_types=True, cdivision=True
cimport cython
from libc.math cimport floor
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, intptr_t
ctypedef int64_t Id
"""

FETCH = '''\
cdef extern from *:
    """
    #ifdef __GNUC__  /* GCC drops functions that do nothing but prefetch */
    #define FETCH(item) do { __builtin_prefetch(item, 1, 3); __asm__ volatile (""); } while (0)
    #else
    #define FETCH(item)
    #endif
    """
    void fetch "FETCH"(void* item) noexcept nogil
'''

ENTRIES = """\
def call_order(handle):
    cdef World w = <World><intptr_t>handle.address
    with nogil:
        count = order(w)
    return count
def call_begin(handle):
    cdef World w = <World><intptr_t>handle.address
    with nogil:
        begin(w)
def call_advance(handle, Id rounds, Id budget):
    cdef World w = <World><intptr_t>handle.address
    with nogil:
        status = advance(w, rounds, budget)
    return status
"""


def joined() -> str:
    """Return the event loop as one Cython module."""
    from perfmodel.engine.library import MODULES, source_digest
    from perfmodel.engine.world import DTYPES, World

    parts, table = [HEAD, FETCH, f"SOURCE = '{source_digest()}'"], []
    for name in World._fields:
        dtype = DTYPES[name]
        if dtype.names:  # an item of an array of length 1 is used as a pointer to the record
            fields = [f"    {TYPES[dtype[field].str[1:]]} {field}" for field in dtype.names]
            parts += [f"cdef struct {name}_record:", *fields]
            parts.append(f"ctypedef {name}_record {name}_item[1]")
            table.append(f"    {name}_item* {name}")
        else:
            table.append(f"    {TYPES[dtype.str[1:]]}* {name}")
    parts += ["cdef struct Table:", *table, "ctypedef Table* World"]
    constants, functions = {}, []
    for name in MODULES:
        module = importlib.import_module(f"perfmodel.engine.{name}")
        for key, value in vars(module).items():
            if key.isupper() and isinstance(value, int | float):
                before = constants.setdefault(key, value)
                if before != value:
                    raise TypeError(f"two constants of the event loop have the name {key}")
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        # C has a macro for the function that prefetches
        functions += [x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name != "fetch"]
    constants["COMPILED"] = True
    parts.append("cdef extern from *:")
    for key, value in constants.items():
        kind, text = ("double", repr(value)) if isinstance(value, float) else ("Id", f"{value:d}LL")
        parts.append(f'    const {kind} {key} "{"INFINITY" if value == inf else text}"')
    for node in map(ToCython().visit, functions):
        kinds = [f"{ast.unparse(one.annotation)} {one.arg}" for one in node.args.args]
        head = f"{ast.unparse(node.returns)} {node.name}({', '.join(kinds)})"
        parts.append(f"cdef inline {head} noexcept nogil:")
        lines = "\n".join(map(ast.unparse, node.body)).splitlines()
        parts += [f"    {line}" for line in lines]
    return "\n".join([*parts, ENTRIES])


class ToCython(ast.NodeTransformer):
    """Gives functions C types, and splits assignments to several variables."""

    def visit_FunctionDef(self, node):
        """Return a function with C types."""
        self.generic_visit(node)
        for one in ast.walk(node):
            if isinstance(one, ast.arg | ast.AnnAssign):
                one.annotation = ast.Name(TYPES[ast.unparse(one.annotation)])
        node.returns = ast.Name(TYPES[ast.unparse(node.returns)])
        return node

    def visit_Assign(self, node):
        """Return an assignment for each variable, since Cython cannot hold items in between."""
        target, value = node.targets[0], node.value
        if not (
            isinstance(target, ast.Tuple) and all(isinstance(x, ast.Name) for x in target.elts)
        ):
            return node
        names = {x.id for x in ast.walk(value) if isinstance(x, ast.Name)}
        if not isinstance(value, ast.Tuple) or names & {x.id for x in target.elts}:
            raise TypeError(f"cannot split line {node.lineno}: {ast.unparse(node)}")
        pairs = zip(target.elts, value.elts, strict=True)
        return [ast.copy_location(ast.Assign([x], y), node) for x, y in pairs]


class BuildLoop(build_ext):
    """Builds the event loop; without a compiler, the package works with the plain loop."""

    def build_extension(self, ext):
        """Build.

        Raises
        ------
        CompileError : it cannot be built; setuptools then goes on, because it is optional.
        """
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # that of an earlier build
        try:
            source = Path(self.build_temp, "_loop.pyx")
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(joined(), encoding="utf-8")
            ext.sources = [str(source)]
            if self.compiler.compiler_type == "unix":
                ext.extra_compile_args = FLAGS
            super().build_extension(ext)
        except Exception as error:
            tell(f"{type(error).__name__}: {error}")
            raise CompileError(str(error)) from error


class Sdist(sdist):
    """Makes the same archive of the same files, whoever makes it, and whenever.

    Its times are SOURCE_DATE_EPOCH, as in all reproducible builds, or else the first of 2020.
    """

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        """Write a folder as a ``.tar.gz`` file and return its name."""
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", 1577836800))
        name, top = Path(f"{base_name}.tar.gz"), Path(root_dir or ".")
        name.parent.mkdir(parents=True, exist_ok=True)
        with (
            name.open("wb") as file,
            gzip.GzipFile("", "wb", 9, file, epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(top.joinpath(base_dir).rglob("*")):
                if not path.is_file():
                    continue
                member = tarfile.TarInfo(path.relative_to(top).as_posix())
                member.size, member.mtime, member.mode = path.stat().st_size, epoch, 0o644
                with path.open("rb") as content:
                    archive.addfile(member, content)
        return str(name)


def tell(reason):
    """Report a failure, also on the terminal: pip hides what a successful build prints."""
    text = (
        f"\nperfmodel: THE EVENT LOOP WAS NOT COMPILED, so simulations will run in plain Python, "
        f"many times slower.\n{reason}\nCompiling needs Cython, a C compiler and the headers of "
        f"Python (Debian: gcc, python3-dev). Afterwards, install again with pip's --no-cache-dir.\n"
    )
    print(text, file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), Path("/dev/tty").open("w") as terminal:
            terminal.write(text)


LIMITED = ("Py_LIMITED_API", "0x030B0000")
"""The extension only uses what all versions of Python from 3.11 have."""

setup(
    cmdclass={"build_ext": BuildLoop, "sdist": Sdist},
    ext_modules=[
        Extension(
            "perfmodel.engine._loop",
            sources=[],
            define_macros=[LIMITED],
            py_limited_api=True,
            optional=True,
        )
    ],
)
