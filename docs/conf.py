"""Settings of the documentation site: ``make docs``, or ``sphinx-build -W docs build/site``.

The pages are plain Markdown and are read on code hosts as they are. What only the site needs is
added while it is built: the navigation, from the lists of pages in ``docs/README.md``, and the
API reference, from docstrings.
"""

from __future__ import annotations

import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from pygments.lexers import TextLexer

import perfmodel

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "perfmodel"
copyright = "the perfmodel developers"
release = version = perfmodel.__version__

extensions = [
    "sphinx_design",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
root_doc = "index"
language = "en"
nitpicky = True
default_role = "code"

nb_execution_mode = "off"  # a slow test executes notebooks
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autosummary_filename_map = {  # sweep beside Sweep, where a file system takes both for one
    f"perfmodel.{name}": f"perfmodel.{name}_function"
    for name in perfmodel.__all__
    if name != name.capitalize() and name.capitalize() in perfmodel.__all__
}
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "perfmodel"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
}

ELSEWHERE = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
    "conduct": "CODE_OF_CONDUCT.md",
    "examples/index": "examples/README.md",
}
"""Pages of the site whose text is outside this folder."""

NOTEBOOKS = "examples/notebooks"
"""Folder of notebooks, in the repository and, as a copy, on the site."""

SECTION = re.compile(r"^## (?P<name>.+)\n(?P<body>(?:(?!## ).*\n?)*)", re.M)
PAGE = re.compile(r"^- \[[^\]]*\]\((?P<page>[^)#]+)\.md\)", re.M)
SCRIPT = re.compile(r"^\[[^\]]+\]\((?P<path>\S+\.py)\)$", re.M)
NAVIGATION = re.compile(r"\n```\{toctree\}.*?^```$", re.M | re.S)
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s:#]+)(?=[)#])")


def moved(text: str, at: Path, to: Path) -> str:
    """The text of a page in folder ``at``, with its links as they are from folder ``to``."""

    def link(found: re.Match[str]) -> str:
        target = (at / found["path"]).resolve()
        if not target.exists():
            return found["path"]
        if target.is_relative_to(ROOT / NOTEBOOKS):
            target = DOCS / target.relative_to(ROOT)
        for page, name in ELSEWHERE.items():
            if target == ROOT / name:
                target = DOCS / f"{page}.md"
        return Path(os.path.relpath(target, to)).as_posix()

    return LINK.sub(link, text)


def lists() -> dict[str, str]:
    """The lists of pages in ``docs/README.md``, by the heading above each."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    return {found["name"]: found["body"].strip() for found in SECTION.finditer(text)}


def shown(script: re.Match[str]) -> str:
    """A script in a box to be opened, and the link to its file."""
    code = f"```{{literalinclude}} {script['path']}\n```"
    return f"{script[0]}\n\n::::{{dropdown}} The script\n{code}\n::::"


def completed(app: Any, docname: str, source: list[str]) -> None:
    """The page ``docname`` with its links as they are on the site.

    Pages from elsewhere get their text, and scripts are shown in full. The index of a folder gets
    the list of its pages, which become its navigation.
    """
    here = (DOCS / docname).parent
    at = ROOT / NOTEBOOKS if docname.startswith(NOTEBOOKS) else here
    source[0] = moved(source[0], at, here)
    if docname in ELSEWHERE:
        path = ROOT / ELSEWHERE[docname]
        text = moved(path.read_text(encoding="utf-8"), path.parent, here)
        source[0] = SCRIPT.sub(shown, text) + "".join(NAVIGATION.findall(source[0]))
    elif docname.endswith("/index"):
        pages = lists()[here.name.replace("-", " ").capitalize()]
        entries = "\n".join(f"/{page}" for page in PAGE.findall(pages))
        source[0] += f"\n{moved(pages, DOCS, here)}\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


ROLE = re.compile(r":(?:\w+:)?\w+:`~?(?P<target>[\w.]+)`")


def reference(found: re.Match[str]) -> str:
    """A link to a public name; what is internal has no page, so it is shown as code."""
    name = found["target"].rpartition(".")[2]
    return f":py:obj:`~perfmodel.{name}`" if name in perfmodel.__all__ else f"``{name}``"


def as_rst(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Make lists of sections such as Parameters: each ``name, name : meaning`` is an entry."""
    text: list[str] = []
    inside = False
    for line, following in pairwise([*lines, ""]):
        if line.strip() and re.fullmatch("-{3,}", following):
            text += [f".. rubric:: {line}", ""]
            inside = True
        elif inside and re.fullmatch("-{3,}", line):
            continue
        elif inside and line and not line[0].isspace():
            names, colon, meaning = line.partition(" : ")
            text += ["", f"- ``{names}``: {meaning}" if colon else f"- {line}"]
        elif inside:
            text.append(f"  {line.strip()}")
        else:
            text.append(line)
    lines[:] = [ROLE.sub(reference, line) for line in text]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    for made in (DOCS / NOTEBOOKS, DOCS / "reference" / "api"):
        shutil.rmtree(made, ignore_errors=True)  # what has no source any more
    shutil.copytree(ROOT / NOTEBOOKS, DOCS / NOTEBOOKS)
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", completed)
    app.connect("autodoc-process-docstring", as_rst)
