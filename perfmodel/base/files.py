"""Reads and writes input files: JSON or TOML, with a versioned schema and located errors."""

from __future__ import annotations

import codecs
import errno
import math
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec

from perfmodel.base.errors import InputError, plain, suggestion
from perfmodel.base.units import dimension_of, parse, show

if TYPE_CHECKING:
    from gzip import GzipFile
    from pathlib import Path

K = TypeVar("K")
T = TypeVar("T", bound=msgspec.Struct)

STDIN = "<stdin>"
"""File name of standard input, in a command that is given ``-``."""

STDOUT = "<stdout>"
"""File name of standard output, in a command that is given ``-``."""

MOST_BYTES = 64 * 10**6
"""Largest input file; a larger one is surely a mistake."""

MOST_RATIO, LEAST_UNPACKED = 100, 2**26
"""Largest compression ratio of a file that unpacks to more than LEAST_UNPACKED bytes."""

MOST_PARTS = 100
"""Parts of a dotted key in TOML, whose cost grows with their square."""

_DOTTED = rb"""[\w"'-]+(?:[ \t]*\.[ \t]*[\w"'-]+)*"""
_UNKNOWN_FIELD = r"Object contains unknown field `(?P<field>[^`]*)`"
_NOT_A_CHOICE = r"Invalid enum value (?P<given>.*)"
_OTHER_TYPE = r"Expected `(?P<types>[^`]*)`, got `(?P<given>\w+)`"
_AT = r" - at `\$?\.?(?P<path>[^`]*)`$"
_STEP = r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]"


def read(path: str | Path, kind: type[T], schema: str) -> T:
    """Read ``path`` as ``kind``, after checking its schema.

    Files are JSON; those whose name ends in .toml are TOML, unless they begin with ``{``.
    Numbers may carry units ("10Gbps", "50us") wherever the field's name ends in a unit.

    Raises
    ------
    InputError : the file is missing, unreadable, truncated or huge, has another schema, an unknown
        key, a wrong type or a value out of range; the text begins with file and place.
    """
    data = read_bytes(path)
    by_content = str(path) == STDIN or str(path).endswith(".toml")
    toml = by_content and not is_json(data)
    return decode(data, kind, schema, name=str(path), toml=toml)


def is_json(data: bytes) -> bool:
    """Return whether a document is JSON rather than TOML or CSV: whether it begins with ``{``."""
    return without_mark(data).lstrip().startswith(b"{")


def without_mark(data: bytes) -> bytes:
    """Return a text file's bytes without the byte order mark that some editors begin it with."""
    return data.removeprefix(codecs.BOM_UTF8)


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the contents of a file, or of standard input inside :func:`standard_streams`.

    Raises
    ------
    InputError : the file cannot be read, or has more than ``most`` bytes.
    """
    if str(path) == STDIN and _lent is not None:
        with _reported(path, "read"):
            return _lent.read(most)
    with _reported(path, "read"), open(path, "rb") as file:
        return beginning(file, most, str(path))


def beginning(file: IO[bytes] | GzipFile, most: int, name: str) -> bytes:
    """Return all bytes of an open file, reading no more than needed to see it is too large.

    Raises
    ------
    InputError : the file has more than ``most`` bytes.
    """
    data = bytearray()
    while len(data) <= most and (part := file.read(2**20)):
        data += part
    if len(data) > most:
        raise InputError(f"{name}: the file is too large: the limit is {show(most, 'bytes')}")
    return bytes(data)


def decode(data: bytes, kind: type[T], schema: str, *, name: str, toml: bool = False) -> T:
    """Like :func:`read`, from bytes; ``name`` is what errors call the file."""
    try:
        raw = parse_toml(data) if toml else msgspec.json.decode(without_mark(data))
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        what = "TOML" if toml else "JSON"
        raise _refused(data, name, schema, f"not valid {what}: {error}") from None
    if not isinstance(raw, dict):
        problem = f"expected an object with a 'schema' key, got {type(raw).__name__}"
        raise _refused(data, name, schema, problem)
    if raw.get("schema") != schema:
        problem = f"schema: expected {schema!r}, got {raw.get('schema')!r}"
        raise _refused(data, name, schema, problem)
    try:
        return msgspec.convert(_with_units(raw, ""), ready(kind))
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: {_located(str(error), kind, raw)}") from None


def _refused(data: bytes, name: str, schema: str, otherwise: str) -> InputError:
    """Return the error for a file without the wanted schema, which says what it is, if known."""
    kind = schema.removeprefix("perfmodel.").partition("/")[0]
    from perfmodel.base import formats  # needed for wrong files only

    wanted = KINDS.get(kind, f"a {kind} file")
    return formats.refusal(data, name, wanted) or InputError(f"{name}: {otherwise}")


KINDS = {"measurements": "a measurement file", "run": "a measured run"}
"""What files are called whose schema has another name."""


def ready(kind: K) -> K:
    """Return ``kind``, prepared so that several threads can decode it at once.

    msgspec analyses a type when it first decodes one. If two threads do that at the same time, the
    process may crash, so it is done here first, under a lock.
    """
    if kind not in _READY:
        with _BUILDING:
            msgspec.json.Decoder(kind)
            _READY.add(kind)
    return kind


_READY: set[object] = set()
_BUILDING = threading.Lock()


def write(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path``, following symbolic links.

    A regular file is written completely or not at all, and keeps its mode and owner. Anything else
    (a device, a pipe, standard output inside :func:`standard_streams`) is written to directly.

    Raises
    ------
    InputError : the file cannot be written.
    OSError : standard output cannot be written.
    """
    if str(path) == STDOUT and _lent is not None:
        _lent.write(data)
        return
    from pathlib import Path

    with _reported(path, "write"):
        old = _status(path)
        if (old is not None and not stat.S_ISREG(old.st_mode)) or _of_a_process(path):
            with open(path, "wb") as file:
                file.write(data)
            return
        place = Path(os.path.realpath(path))
        temporary = _beside(place)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                if old is not None:
                    _copy_owner(file.fileno(), old)
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)


def _copy_owner(descriptor: int, old: os.stat_result) -> None:
    """Give an open file the owner and the mode of another, on systems that have them."""
    if hasattr(os, "fchown"):
        with suppress(OSError):  # only root may change the owner
            os.fchown(descriptor, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def check_writable(path: str | Path) -> None:
    """Check that :func:`write` can write to ``path``, before any work is done for it.

    Raises
    ------
    InputError : it is a folder, or its folder does not allow new files.
    """
    if str(path) == STDOUT and _lent is not None:
        return
    with _reported(path, "write"):
        old = _status(path)
        if old is not None and stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if (old is not None and not stat.S_ISREG(old.st_mode)) or _of_a_process(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        from pathlib import Path

        temporary = _beside(Path(os.path.realpath(path)))
        temporary.open("xb").close()
        temporary.unlink()


@contextmanager
def _reported(path: str | Path, what: str) -> Iterator[None]:
    """Raise failures as InputError (a null byte in a name is a ValueError in Python)."""
    if not str(path):
        raise InputError(f"cannot {what} a file: its name is empty")
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot {what}: {error.strerror or error}") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: cannot {what}: {error}") from None


def _status(path: str | Path) -> os.stat_result | None:
    """Return the status of a file, following links; None if it does not exist."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _of_a_process(path: str | Path) -> bool:
    """Return whether the path is an open file of a process, such as /dev/stdout."""
    return os.path.realpath(os.path.dirname(path) or os.curdir).startswith(("/dev", "/proc"))


def _beside(place: Path) -> Path:
    """Return a name for a temporary file in the same folder."""
    return place.parent / f".perfmodel-{os.urandom(6).hex()}"


def finite(value: Any, infinity: Any = None) -> Any:
    """Return a value as JSON can hold it: infinities at any depth become ``infinity``.

    >>> finite({"high": math.inf, "points": (1.0, 2.0)}), finite(math.inf, "inf")
    ({'high': None, 'points': [1.0, 2.0]}, 'inf')
    """
    if isinstance(value, float):
        return infinity if math.isinf(value) else value
    if isinstance(value, dict):
        return {
            key: item if type(item) in _NO_FLOATS else finite(item, infinity)
            for key, item in value.items()
        }
    return [finite(item, infinity) for item in value] if isinstance(value, (list, tuple)) else value


_NO_FLOATS = {str, int, bool, type(None)}


def looks_like_path(text: str) -> bool:
    """Return whether the text is a file path rather than a name in the catalogue."""
    return "/" in text or "\\" in text or text.endswith((".json", ".toml", ".csv")) or text == STDIN


class _Streams:
    """Standard input, read once, and standard output."""

    def __init__(self, source: BinaryIO | None, sink: BinaryIO | None) -> None:
        self._source, self._sink = source, sink
        self._data: bytes | None = None

    def read(self, most: int) -> bytes:
        """Read all of standard input; a second call returns the same."""
        if self._data is None:
            if self._source is None:
                raise InputError(f"{STDIN}: standard input is closed")
            self._data = beginning(self._source, most, STDIN)
        return self._data

    def write(self, data: bytes) -> None:
        """Write to standard output."""
        if self._sink is None:
            raise InputError(f"{STDOUT}: standard output is closed")
        self._sink.write(data)
        self._sink.flush()


_lent: _Streams | None = None


@contextmanager
def standard_streams(source: BinaryIO | None, sink: BinaryIO | None) -> Iterator[None]:
    """Make the file names STDIN and STDOUT mean these streams; outside, they are plain names."""
    global _lent
    before, _lent = _lent, _Streams(source, sink)
    try:
        yield
    finally:
        _lent = before


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the contents of a TOML document.

    Raises
    ------
    ValueError, RecursionError : it is not one, or nested too deeply.
    """
    import tomllib

    for key in re.finditer(_DOTTED, data) if data.count(b".") > MOST_PARTS else ():
        if key[0].count(b".") > MOST_PARTS:
            raise ValueError(f"a key of more than {MOST_PARTS} parts")
    return tomllib.loads(without_mark(data).decode("utf-8"))


def most_unpacked(packed: int, most: int, ratio: int = MOST_RATIO) -> int:
    """Return how many bytes a compressed file of ``packed`` bytes may unpack to, at most ``most``.

    A small file that unpacks to more than LEAST_UNPACKED and to ``ratio`` times its size holds
    little else than one repeated value, and is surely a mistake.
    """
    return min(max(ratio * packed, LEAST_UNPACKED), most)


def _with_units(value: object, place: str) -> object:
    """Replace text such as "10Gbps" by its SI value in every field whose name ends in a unit.

    Other text, names of fields included, is made :func:`printable`.
    """
    if isinstance(value, list):
        # long lists of numbers make up most of a profile and hold no text
        if value and isinstance(value[0], (dict, list, str)):
            return [_with_units(item, f"{place}[{i}]") for i, item in enumerate(value)]
        return value
    if isinstance(value, str):
        dimension = dimension_of(place.rpartition(".")[2].partition("[")[0])
        if dimension:
            return parse(value, dimension, place)
        return printable(value)
    if not isinstance(value, dict):
        return value
    made = {}
    for key, item in value.items():
        name = printable(str(key))
        if not isinstance(item, (int, float)):  # most values of a profile are numbers
            item = _with_units(item, f"{place}.{name}" if place else name)
        made[name] = item
    return made


def printable(value: Any) -> Any:
    """Return a value with control characters escaped in all text at any depth, see :func:`plain`.

    >>> printable({"a": ["x\\x1b", 1]})
    {'a': ['x\\\\x1b', 1]}
    """
    if isinstance(value, str):
        return value if value.isprintable() else plain(value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def _located(message: str, kind: type, raw: object) -> str:
    """Turn "Expected ... - at `$.a[0]`" into "a[0]: expected ...", with the nearest field name, and
    with what the file has there."""
    at = re.search(_AT, message)
    path = at["path"] if at else ""
    text = message[: at.start()] if at else message
    if unknown := re.search(_UNKNOWN_FIELD, text):
        fields = _fields_at(kind, path)
        field = unknown["field"]
        hint = suggestion(field, fields)
        text = f"unknown key {field!r}{hint} (allowed: {', '.join(fields)})"
    elif wrong := re.fullmatch(_NOT_A_CHOICE, text):
        choices = ", ".join(map(str, _choices(_type_at(kind, path))))
        text = f"expected one of {choices}, got {wrong['given']}"
    elif wrong := re.fullmatch(_OTHER_TYPE, text):
        allowed = [TYPES.get(each, each) for each in wrong["types"].split(" | ") if each != "null"]
        found = _value_at(raw, path)
        kind_given = TYPES.get(wrong["given"], "another type")
        given = repr(found) if isinstance(found, (str, float)) else kind_given
        text = f"expected {' or '.join(allowed)}, got {given}"
    elif text[:1].isupper():
        text = text[0].lower() + text[1:]
    return f"{path}: {text}" if path else text


TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "null",
}
"""Types of values in words, by what msgspec calls them."""


def _value_at(raw: object, path: str) -> object:
    """Return the value at ``path`` in the values of a file; None where that is not known."""
    for key, index in re.findall(_STEP, path):
        if isinstance(raw, dict):
            raw = raw.get(key)
        elif isinstance(raw, list) and index.isdigit():
            raw = raw[int(index)]
        else:
            return None
    return raw


def _type_at(kind: type, path: str) -> msgspec.inspect.Type:
    """Return the type at ``path`` inside ``kind``."""
    node = msgspec.inspect.type_info(kind)
    for key, _index in re.findall(_STEP, path):
        node = _struct(node)
        if key and isinstance(node, msgspec.inspect.StructType):
            node = next((f.type for f in node.fields if f.encode_name == key), node)
    return node


def _choices(node: msgspec.inspect.Type) -> tuple[object, ...]:
    """Return the words that a type allows."""
    nodes = getattr(node, "types", (node,))
    return next((n.values for n in nodes if isinstance(n, msgspec.inspect.LiteralType)), ())


def _fields_at(kind: type, path: str) -> list[str]:
    """Return the field names of the struct at ``path`` inside ``kind``."""
    node = _struct(_type_at(kind, path))
    return [field.encode_name for field in getattr(node, "fields", ())]


def _struct(node: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return the struct inside containers and unions."""
    for inner in ("item_type", "value_type", "type"):
        if hasattr(node, inner):
            return _struct(getattr(node, inner))
    if hasattr(node, "types"):
        return next((s for s in map(_struct, node.types) if hasattr(s, "fields")), node)
    return node
