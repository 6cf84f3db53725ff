"""Documentation pages match the program: outputs, files, links and option tables are checked.

Conventions for README.md, examples/README.md and docs/**/*.md:

- a ```console block holds commands, ``$ perfmodel ...``, each followed by what it prints, on
  standard output and standard error together (``> FILE`` redirects standard output). If nothing
  follows a command, its output is not checked, only its success;
- a long output may be shown in parts: a ```console block without a command goes on with the output
  of the last command, from the next empty line; after a block that ends with a line of three dots,
  which stand for paragraphs that are left out, it holds the last paragraphs;
- a ```python block is run; a ```text block right after it is its output;
- ``<!-- file: NAME -->`` before a block creates NAME for the following commands of the page;
- all blocks of a page run in order, in one empty folder. Trailing blanks are ignored.

``PERFMODEL_UPDATE_OUTPUTS=1`` updates the outputs in the pages instead.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import itertools
import os
import re
import runpy
import shlex
import sys
import warnings
from pathlib import Path

import msgspec
import pytest

import perfmodel
from perfmodel import InputError, Source, api, cli
from perfmodel.architectures import registry
from perfmodel.architectures.reference import reference
from perfmodel.base import files
from perfmodel.engine import simulation, starts, steady, warmup
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import SCHEMA as CLUSTER_SCHEMA, Cluster
from perfmodel.inputs.device import SCHEMA as DEVICE_SCHEMA, Device
from perfmodel.inputs.job_files import SCHEMA as JOB_SCHEMA, JobFile
from perfmodel.inputs.profile import SCHEMA as WORKLOAD_SCHEMA, Profile
from perfmodel.measuring.measurements import SCHEMA as MEASUREMENTS_SCHEMA, Measurements
from perfmodel.results.prediction import Prediction
from perfmodel.theory.scaling_laws import SCHEMA as LAW_SCHEMA, ScalingLaw
from perfmodel.validation.cases import SCHEMA as CASES_SCHEMA, Case, CaseJob, Cases, MeasuredValues

ROOT = Path(__file__).parents[2]
FRONT = [ROOT / "README.md", ROOT / "examples" / "README.md"]
PAGES = [*FRONT, *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorial").glob("*.md"))]
SLOW = (
    "architectures",
    "calibrate",
    "commands",
    "diagnose",
    "from-a-ddp-log",
    "how-long-to-simulate",
    "split-a-model",
    "sweep-and-compare",
    "use-as-library",
    "validate",
    "study-ipccc20",
    "study-ipdps21",
    "three-sites",
    "tour",
    "train-to-a-loss",
    "which-algorithm",
)
"""Pages with slow commands."""

DOTS = "...\n"
"""Stands for paragraphs of an output that a page leaves out."""

MOST_LINES = 11
"""Of a block in a tutorial or in the README, which people read from top to bottom."""

UPDATE = os.environ.get("PERFMODEL_UPDATE_OUTPUTS") == "1"
KINDS = {
    WORKLOAD_SCHEMA: Profile,
    CLUSTER_SCHEMA: Cluster,
    DEVICE_SCHEMA: Device,
    JOB_SCHEMA: JobFile,
    CASES_SCHEMA: Cases,
    MEASUREMENTS_SCHEMA: Measurements,
    LAW_SCHEMA: ScalingLaw,
}

BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def rendered(text: str, folder: Path) -> str:
    """The page with the real outputs of its commands."""
    names: dict[str, object] = {"__name__": "__page__"}
    parts, done, ended, printed = [], 0, 0, None
    left: list[str] = []
    blocks = list(BLOCK.finditer(text))
    for block, after in itertools.zip_longest(blocks, blocks[1:]):
        kind, body = block["kind"], block["body"]
        adjacent = not text[ended : block.start()].strip()
        if block["file"]:
            (folder / block["file"]).write_text(body, encoding="utf-8")
        elif kind == "console":
            more = after is not None and after["kind"] == "console" and after["body"][:2] != "$ "
            if body.startswith("$ "):
                body, left = _console(body, folder, more)
            else:
                body, left = _part(body, left, more)
        elif kind == "text" and printed is not None and adjacent:
            body = printed
        printed = None
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.chdir(folder):
                exec(compile(body, "page", "exec"), names)
            printed = _tidy(out.getvalue())
        parts += [text[done : block.start("body")], body]
        done, ended = block.end("body"), block.end()
    return "".join([*parts, text[done:]])


def _console(body: str, folder: Path, more: bool) -> tuple[str, list[str]]:
    """The block with real outputs; the paragraphs of the last one that it does not show."""
    commands = re.split(r"^\$ ", body.replace("\\\n", "\\\0"), flags=re.M)
    out: list[str] = []
    left: list[str] = []
    for part in commands[1:]:
        command, _, shown = part.partition("\n")
        goes_on = more and part is commands[-1]
        printed = _run(command.replace("\\\0", " "), folder)
        text, left = _part(shown, printed.split("\n\n"), goes_on) if shown else ("", [])
        out.append(f"$ {command}\n{text}")
    return "".join(out).replace("\\\0", "\\\n"), left


def _part(shown: str, paragraphs: list[str], more: bool) -> tuple[str, list[str]]:
    """As many of the paragraphs as a block shows, or all if no ``more`` blocks follow; and the rest
    of them, of which three dots leave out those before the last block's."""
    assert paragraphs, f"a console block starts with '$ ', or goes on with an output: {shown!r}"
    cut = shown.endswith(f"\n{DOTS}")
    count = shown.removesuffix(DOTS).count("\n\n") + 1
    if cut or more:
        text = "\n\n".join(paragraphs[:count]).removesuffix("\n")
        left = [DOTS, *paragraphs[count:]] if cut else paragraphs[count:]
        return f"{text}\n{DOTS if cut else ''}", left
    if paragraphs[0] == DOTS:
        paragraphs = paragraphs[-count:]
    return "\n\n".join(paragraphs), []


def _run(command: str, folder: Path) -> str:
    """Output of a command, run in this process as if it were alone in it."""
    program, *words = shlex.split(command)
    assert program == "perfmodel", f"only perfmodel can be run here: {command}"
    target = folder / words.pop() if words[-2:-1] == [">"] else None
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors if target else out),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", [program, *(word for word in words if word != ">")])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # changed by the program
        for name in ("FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        with pytest.raises(SystemExit) as end:
            cli.main()
    out.flush()
    printed = out.buffer.getvalue().decode()
    assert "install the same on both" not in printed, "the package changed while this ran"
    expected = 2 if printed.startswith("perfmodel: error: ") else 0
    assert end.value.code == expected, f"{command}: exit {end.value.code}\n{printed}"
    if target is None:
        return _tidy(printed)
    target.write_text(printed, encoding="utf-8")
    return ""


def _tidy(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.family("pages")
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in PAGES],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    real = rendered(text, tmp_path)
    if UPDATE:
        files.write(page, real.encode())  # atomically: other tests read it meanwhile
        return
    difference = difflib.unified_diff(text.splitlines(), real.splitlines(), "page", "real")
    assert real == text, "\n".join(["PERFMODEL_UPDATE_OUTPUTS=1 rewrites the page", *difference])


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def long_blocks(text: str) -> list[str]:
    """First lines of the blocks of ``text`` that have more than :data:`MOST_LINES` lines."""
    bodies = (block["body"] for block in BLOCK.finditer(text))
    return [body.split("\n")[0] for body in bodies if body.count("\n") > MOST_LINES]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_blocks_of_tutorials_are_short(page: Path) -> None:
    assert long_blocks(page.read_text(encoding="utf-8")) == []


def test_canary_a_long_block_is_noticed() -> None:
    short, long = ("".join(f"{i}\n" for i in range(lines)) for lines in (11, 12))
    assert long_blocks(f"```text\n{short}```\n\n```\n{long}```\n") == ["0"]


def test_pages_contain_commands() -> None:
    blocks = [b["kind"] for page in PAGES for b in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    assert blocks.count("console") >= 10
    assert blocks.count("python") >= 3


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ perfmodel --version\nperfmodel 0.0.0\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```console\n$ perfmodel list \\\n    architectures\nnone\n```\n",
        "```console\n$ perfmodel predict --model resnet18\nnone\n```\n\nand\n```console\nx\n```\n",
        "```console\n$ perfmodel predict --model resnet18\nnone\n...\n```\n\n```console\nx\n```\n",
    ],
)
def test_canary_a_wrong_output_is_noticed(text: str, tmp_path: Path) -> None:
    real = rendered(text, tmp_path)
    assert real != text
    assert rendered(real, tmp_path) == real


def test_canary_a_failing_command_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit 2"):
        rendered("```console\n$ perfmodel show nothing > file\n```\n", tmp_path)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of ``text`` that lead nowhere from ``page``."""
    prose = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))
    broken = []
    for target in (link["target"] for link in LINK.finditer(prose)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path) if path else page
        if not place.exists():
            broken.append(target)
        elif anchor:
            lines = place.read_text(encoding="utf-8") if place != page else text
            if anchor not in {_slug(h) for h in re.findall(r"^#+ (.*)$", lines, flags=re.M)}:
                broken.append(target)
    return broken


@by_page
def test_links_are_not_broken(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_canary_a_broken_link_is_noticed() -> None:
    text = "# Here\n[a](nowhere.md) [b](LICENSE) [c](#here) [d](#there) [e](https://example.org)"
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md", "#there"]


def schemas_read(text: str, name: str) -> int:
    """Read every input file shown in ``text``; returns their number."""
    found = 0
    for block in BLOCK.finditer(text):
        schema = re.search(r'^\s*[{]?\s*"?schema"?\s*[:=]\s*"([^"]+)"', block["body"], re.M)
        if block["kind"] in ("json", "toml") and schema:
            files.decode(
                block["body"].encode(),
                KINDS[schema[1]],
                schema[1],
                name=name,
                toml=block["kind"] == "toml",
            )
            found += 1
    return found


def test_input_files_shown_can_be_read() -> None:
    found = {page.name: schemas_read(page.read_text(encoding="utf-8"), page.name) for page in PAGES}
    assert found["own-model.md"] >= 2
    assert found["own-cluster.md"] >= 2
    assert found["device-file.md"] >= 1
    assert found["job-file.md"] >= 1
    assert found["measurement-file.md"] >= 1
    assert found["train-to-a-loss.md"] >= 1


def test_canary_a_wrong_input_file_is_noticed() -> None:
    with pytest.raises(InputError, match="unknown key 'nik'"):
        schemas_read('```toml\nschema = "perfmodel.cluster/1"\nname = "a"\nnik = 1\n```\n', "page")


def _missing(page: str, words: list[str]) -> list[str]:
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    return [word for word in words if f"`{word}" not in text and f".{word}`" not in text]


def _fields(struct: type[msgspec.Struct]) -> list[str]:
    names = []
    for field in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        names.append(field.encode_name)
        kinds = getattr(field.type, "types", (field.type,))
        for kind in (getattr(k, "item_type", k) for k in kinds):
            if isinstance(kind, msgspec.inspect.StructType):
                names += _fields(kind.cls)
    return names


def test_the_page_of_the_command_line_matches_the_help() -> None:
    path = ROOT / "docs" / "reference" / "command-line.md"
    generator = runpy.run_path(str(ROOT / "docs" / "command_line.py"))
    text = path.read_text(encoding="utf-8")
    if UPDATE:
        files.write(path, generator["page"](text).encode())
        return
    assert generator["page"](text) == text, "PERFMODEL_UPDATE_OUTPUTS=1 rewrites the page"
    assert "| `--bandwidth` 10Gbps |" in text
    assert generator["page"](text.replace("| `--bandwidth` 10Gbps |", "|")) == text


def test_reference_pages_are_complete() -> None:
    in_json = [name for name in _fields(Prediction) if name != "predicted_job"]
    assert _missing("json-output.md", in_json) == []
    fitted = set(_fields(Calibration))  # in cluster-file.md, to which workload-file.md links
    assert _missing("workload-file.md", [f for f in _fields(Profile) if f not in fitted]) == []
    assert _missing("job-file.md", _fields(JobFile)) == []
    in_cases = [f for s in (Case, MeasuredValues) for f in s.__struct_fields__]
    in_cases += [f for f in CaseJob.__struct_fields__ if f not in JobFile.__struct_fields__]
    assert _missing("cases-file.md", in_cases) == []
    assert _missing_names(perfmodel.__all__) == []
    described = set(_fields(Source))  # in workload-file.md, to which the others link
    assert _missing("cluster-file.md", [f for f in _fields(Cluster) if f not in described]) == []
    measured = [f for f in _fields(Measurements) if f not in described]
    assert _missing("measurement-file.md", measured) == []
    assert _missing("device-file.md", [f for f in _fields(Device) if f not in described]) == []


def _missing_names(names: list[str]) -> list[str]:
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    return sorted(set(names) ^ set(re.findall(r"^   (\w+)$", text, flags=re.M)))


def not_listed(listing: str, pages: list[str]) -> list[str]:
    """Pages missing from the list of all pages, which the site could not reach."""
    return [page for page in pages if f"]({page})" not in listing]


def test_all_pages_are_listed() -> None:
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES[len(FRONT) :]]
    own = ("README.md", "changelog.md", "conduct.md", "contributing.md", "security.md")
    listing = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    rest = [page for page in pages if page not in own and not page.endswith("index.md")]
    assert not_listed(listing, rest) == []
    assert not_listed(listing, ["reference/none.md"]) == ["reference/none.md"]


def test_the_lengths_of_runs_are_as_described() -> None:
    pages = ("explanation/one-idea.md", "decisions/0010-steady-state.md")
    idea, decision = (
        " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split()) for page in pages
    )
    for text in (idea, decision):
        assert f"within {simulation.MOST_PERIODIC_ROUNDS} rounds" in text
        assert f"pilot of {warmup.PILOT_ROUNDS} rounds" in text
    assert f"within {api.REL_CI * 100:g} % of it" in idea
    assert f"After {starts.FEWEST_RUNS} runs" in idea
    assert f"up to {starts.MOST_RUNS}." in idea
    assert f"{starts.FEWEST_RUNS} to {starts.MOST_RUNS} times" in decision
    assert f"up to {warmup.MOST_PILOT_ROUNDS} rounds" in decision
    assert f"for {starts.MOST_ROUNDS} rounds" in decision
    assert f"{steady.FEWEST_BATCHES} to {2 * steady.MOST_BATCHES - 1} batches" in decision
    assert f"more than {steady.MOST_CORRELATION:g}," in decision


def test_canary_a_missing_option_is_noticed() -> None:
    assert _missing_names([*perfmodel.__all__, "nothing"]) == ["nothing"]
    assert _missing("json-output.md", ["no_such_key"]) == ["no_such_key"]


def test_the_page_of_options_matches_the_architectures() -> None:
    path = ROOT / "docs" / "reference" / "options.md"
    head = path.read_text(encoding="utf-8").partition("\n## ")[0]
    page = f"{head}\n{reference(registry.all_architectures())}"
    if os.environ.get("PERFMODEL_UPDATE_OUTPUTS"):
        path.write_text(page, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == page
