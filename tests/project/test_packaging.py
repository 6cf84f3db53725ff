"""The shipped profiles are found after any kind of installation, and nothing else is shipped."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import perfmodel
from perfmodel import make_job, predict

ROOT = Path(__file__).parents[2]
LIBRARY = "_loop.abi3.so"
"""File name of the compiled event loop, in all versions of Python."""
SETUPTOOLS = 77
"""First version that reads the project's licence; see build-system.requires."""


def missing() -> str:
    """What this environment lacks to build the package; empty if nothing."""
    if importlib.util.find_spec("pip") is None:
        return "pip is needed"
    try:
        found = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return f"setuptools >= {SETUPTOOLS} is needed"
    if int(found.partition(".")[0]) < SETUPTOOLS:
        return f"setuptools >= {SETUPTOOLS} is needed, this is {found}"
    if not (ROOT / "pyproject.toml").is_file():
        return "only in a checkout"
    return ""


def no_compiler() -> str:
    """What this environment lacks to compile the event loop; empty if nothing."""
    if importlib.util.find_spec("Cython") is None:
        return "Cython is needed"
    if shutil.which("cc") is None:
        return "a C compiler is needed"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"{header} is needed"


needs_compiler = pytest.mark.skipif(
    bool(missing() or no_compiler()), reason=f"compiles: {missing() or no_compiler()}"
)
needs_builder = pytest.mark.skipif(
    bool(missing()), reason=f"builds the package: {missing()} (pip install -e '.[test]')"
)

PROBE = """
import sys
import perfmodel
sys.path += sys.argv[1:]
import json
from perfmodel import make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.predicting.installation import how_it_simulates
from perfmodel.validation import shipped_cases
print(json.dumps({
    "file": perfmodel.__file__,
    "version": perfmodel.__version__,
    "folder": str(catalogue.folder()),
    "names": [catalogue.model_names(), catalogue.device_names(), catalogue.cluster_names()],
    "cases": sorted({case.source.url or "" for case in shipped_cases()}),
    "model": catalogue.model("resnet18").name,
    "cython": "Cython" in sys.modules,
    "how": how_it_simulates(),
    "throughput": predict(make_job(model="resnet18", workers=2)).throughput_samples_per_s,
}))
"""


def folder_of(*modules: str) -> list[str]:
    """Folders from which these modules are imported."""
    folders = []
    for module in modules:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))


def run(
    *command: str | Path,
    cwd: Path,
    path: list[str] | None = None,
    variables: dict[str, str] | None = None,
) -> str:
    """Standard output of a command that must succeed; ``path`` is its PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    environment |= (variables or {}) | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(path)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(
    *arguments: str | Path,
    cwd: Path,
    python: Path = Path(sys.executable),
    path: list[str] | None = None,
) -> None:
    """Run pip without network access, with the build tools of this environment."""
    tools = [*folder_of("pip", "setuptools"), *(path or [])]
    run(python, "-m", "pip", *arguments, "--no-deps", cwd=cwd, path=tools)


JOB = make_job(model="resnet18", workers=2)


def check(found: str, inside: Path, how: str = "compiled code") -> None:
    """Check that the output comes from an installation below ``inside`` with all profiles, which
    simulates with the expected loop."""
    answer = json.loads(found)
    for place in ("file", "folder"):
        assert Path(answer[place]).resolve().is_relative_to(inside.resolve()), answer[place]
    assert answer["version"] == perfmodel.__version__
    assert answer["model"] == "resnet18"
    assert how in answer["how"]
    assert answer["throughput"] == predict(JOB).throughput_samples_per_s
    assert not answer["cython"]
    assert len(answer["cases"]) >= 4
    assert answer["names"] == [
        sorted(path.stem for path in (ROOT / "profiles" / kind).glob(f"*.{ending}"))
        for kind, ending in (("models", "json"), ("devices", "toml"), ("clusters", "toml"))
    ]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files needed for a build, so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("packaging") / "tree"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("perfmodel", "profiles"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", LIBRARY)
        )
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    """The source distribution, made by the backend that pyproject.toml names."""
    return source(tree, "dist")


def source(tree: Path, folder: str, **variables: str) -> Path:
    """Make the source distribution of a tree in one of its folders, with these variables."""
    code = f"from setuptools.build_meta import build_sdist; build_sdist({folder!r})"
    (tree / folder).mkdir()
    run(sys.executable, "-c", code, cwd=tree, path=folder_of("setuptools"), variables=variables)
    (found,) = (tree / folder).glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel, built from the source distribution as a release is."""
    return built(sdist, sdist.parent / "wheel")[0]


def built(sdist: Path, folder: Path, **variables: str) -> tuple[Path, str]:
    """Build the wheel, with these environment variables; return it and the log of the build."""
    folder.mkdir()
    log = folder / "log"
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"),
        *("--log", log, "--wheel-dir", folder, sdist),
        cwd=folder,
        path=folder_of("pip", "setuptools"),
        variables=variables,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel, log.read_text()


PAGES = ("page.css", "page.html", "page.js", "theme.js")
"""Files needed to make report pages."""


def misplaced(names: list[str], version: str) -> list[str]:
    """Files of a wheel that do not belong there."""
    allowed = ("perfmodel/", f"perfmodel-{version}.dist-info/")
    endings = (".py", ".json", ".toml", "instances.csv", "py.typed", *PAGES, LIBRARY)
    return [
        name
        for name in names
        if not name.startswith(allowed)
        or (name.startswith(allowed[0]) and not name.endswith(endings))
    ]


@pytest.mark.slow
@needs_compiler
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    version = perfmodel.__version__
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"perfmodel-{version}-cp311-abi3-{platform}.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert misplaced(names, version) == []
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "perfmodel").rglob("*.py")}
    profiles = {
        f"perfmodel/_profiles/{path.relative_to(ROOT / 'profiles').as_posix()}"
        for path in (ROOT / "profiles").rglob("*.*")
        if path.suffix in (".json", ".toml", ".csv")
    }
    assert "perfmodel/_profiles/models/resnet18.json" in profiles
    predicting = {f"perfmodel/predicting/{name}.json" for name in ("bands", "memory")}
    others = predicting | {"perfmodel/py.typed"}
    pages = {f"perfmodel/reporting/{name}" for name in PAGES}
    library = f"perfmodel/engine/{LIBRARY}"
    assert sources | profiles | others | pages | {library} == {
        name for name in names if name.startswith("perfmodel/")
    }


@pytest.mark.slow
@needs_builder
def test_wheel_describes_itself(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = f"perfmodel-{perfmodel.__version__}.dist-info"
        metadata = archive.read(f"{folder}/METADATA").decode()
        commands = archive.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
    assert f"\nVersion: {perfmodel.__version__}\n" in metadata
    assert "perfmodel = perfmodel.__main__:run" in commands


@pytest.mark.slow
@needs_builder
def test_source_distribution_holds_the_profiles(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"profiles/models/resnet18.json", "perfmodel/py.typed", "LICENSE"} <= names


@pytest.mark.slow
@needs_builder
def test_source_distributions_of_the_same_files_are_equal(sdist: Path, tree: Path) -> None:
    for path in tree.rglob("*.toml"):  # as in a checkout of another day
        os.utime(path, (1e9, 1e9))
    again = source(tree, "again")
    later = source(tree, "later", SOURCE_DATE_EPOCH="1700000000")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (sdist, again, later)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]  # the canary: the time is part of what is compared
    with tarfile.open(later) as archive:
        assert {member.mtime for member in archive} == {1700000000}
        assert {(member.uid, member.gid, member.uname) for member in archive} == {(0, 0, "")}


@pytest.mark.slow
@needs_compiler
def test_profiles_are_found_after_installing_the_wheel(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pip("install", "--target", target, wheel, cwd=tmp_path)
    dependencies = folder_of("msgspec")
    found = run(sys.executable, "-c", PROBE, *dependencies, cwd=tmp_path, path=[str(target)])
    check(found, target / "perfmodel")
    assert not (target / "profiles").exists()
    printed = run(
        sys.executable,
        "-m",
        "perfmodel",
        "--version",
        cwd=tmp_path,
        path=[str(target), *folder_of("click")],
    )
    assert printed == (
        f"perfmodel, version {perfmodel.__version__}\nsimulates with compiled code\n"
    )


@pytest.mark.slow
@pytest.mark.family("installations")  # .ci/run makes both as well
@needs_builder
def test_without_a_compiler_the_package_works_and_says_so(sdist: Path, tmp_path: Path) -> None:
    plain, log = built(sdist, tmp_path / "wheel", PATH=str(tmp_path))
    assert "THE EVENT LOOP WAS NOT COMPILED" in log
    target = tmp_path / "target"
    pip("install", "--target", target, plain, cwd=tmp_path)
    found = run(
        sys.executable, "-c", PROBE, *folder_of("msgspec"), cwd=tmp_path, path=[str(target)]
    )
    check(
        found,
        target / "perfmodel",
        "in plain Python, many times slower, without compiled code: it was not comp",
    )


@pytest.mark.slow
@pytest.mark.family("installations")  # .ci/run makes both as well
@needs_compiler
def test_profiles_are_found_after_an_editable_install(tree: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=os.name != "nt")
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    # in a separate environment, so that this one stays unchanged
    pip(
        "install",
        "--ignore-installed",
        "--no-build-isolation",
        "-e",
        tree,
        cwd=tmp_path,
        python=python,
        path=folder_of("Cython", "msgspec", "numpy"),
    )
    found = run(python, "-c", PROBE, *folder_of("msgspec"), cwd=tmp_path)
    check(found, tree)
    (tree / "perfmodel" / "engine" / LIBRARY).unlink()


@pytest.mark.slow
def test_profiles_are_found_in_a_bare_checkout(tree: Path, tmp_path: Path) -> None:
    dependencies = folder_of("msgspec")
    found = run(
        sys.executable,
        "-c",
        PROBE,
        *dependencies,
        cwd=tmp_path,
        path=[str(tree)],
        variables={"PERFMODEL_COMPILED": "0"},
    )
    check(found, tree, "in plain Python, many times slower, without compiled code: it was not comp")


@pytest.mark.slow
def test_missing_profiles_are_reported(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree / "perfmodel", tmp_path / "perfmodel")
    code = (
        f"import sys; import perfmodel; sys.path += {folder_of('msgspec')!r}\n"
        "from perfmodel.catalogue import catalogue\n"
        "try:\n    catalogue.folder()\n"
        "except perfmodel.InputError as error:\n    print(error)\n"
    )
    found = run(sys.executable, "-c", code, cwd=tmp_path, path=[str(tmp_path)])
    assert found == "the shipped profiles are missing: reinstall perfmodel\n"


@pytest.mark.parametrize(
    "name", ["profiles/models/resnet18.json", "tests/test_cli.py", "perfmodel/notes.txt", "x.py"]
)
def test_canary_a_misplaced_file_is_noticed(name: str) -> None:
    right = [
        "perfmodel/cli/jobs.py",
        "perfmodel/_profiles/devices/v100.toml",
        "perfmodel/py.typed",
        "perfmodel-1.0.dist-info/METADATA",
    ]
    assert misplaced([*right, name], "1.0") == [name]


@pytest.mark.slow
def test_canary_another_installation_is_noticed(tmp_path: Path) -> None:
    dependencies = folder_of("msgspec")
    found = run(sys.executable, "-c", PROBE, *dependencies, cwd=tmp_path, path=[str(ROOT)])
    check(found, ROOT)
    with pytest.raises(AssertionError):
        check(found, tmp_path)
