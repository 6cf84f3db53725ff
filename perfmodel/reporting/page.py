"""Writes a page as one HTML file that needs no network (extra ``report``)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from perfmodel import __version__
from perfmodel.base import files
from perfmodel.base.errors import InputError
from perfmodel.reporting.contents import Page, numeric, raw, shown

LONG_TABLE = 12
"""Rows from which a table is folded."""


OTHER_FORMATS = ("csv", "json", "md", "parquet", "pdf", "png", "svg", "txt")
"""Endings of files that hold something else than a page."""


def check(ending: str = "") -> None:
    """Look at the ending of a file's name, and for the libraries, before anything is predicted.

    Raises
    ------
    InputError : the ending is that of another format; Bokeh is not installed.
    """
    if ending in OTHER_FORMATS:
        raise InputError(f"report: cannot write {ending!r} files, only HTML (html)")
    try:
        import bokeh.plotting  # noqa: F401
        import jinja2  # noqa: F401
    except ImportError:
        raise InputError("reports need Bokeh: pip install 'perfmodel[report]'") from None


def html(page: Page, path: str | Path | None = None) -> str:
    """The page as text, also written to ``path`` if there is one.

    Raises
    ------
    InputError : Bokeh is not installed; the place cannot be written.
    """
    check()
    import jinja2
    from bokeh.embed import components
    from bokeh.resources import Resources

    from perfmodel.reporting.plots import drawn

    if path is not None:
        files.check_writable(path)
    plots = {part.name: drawn(part.figure) for part in page.sections if part.figure is not None}
    script, divisions = components(plots) if plots else ("", {})
    library = Resources(mode="inline", components=["bokeh"]).render_js() if plots else ""
    room = resources.files("perfmodel.reporting")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text: str = environment.from_string((room / "page.html").read_text(encoding="utf-8")).render(
        page=page,
        version=__version__,
        style=(room / "page.css").read_text(encoding="utf-8"),
        theme=(room / "theme.js").read_text(encoding="utf-8"),
        figures=(room / "page.js").read_text(encoding="utf-8"),
        library=library,
        script=script,
        divisions=divisions,
        shown=shown,
        raw=raw,
        numeric=numeric,
        long=LONG_TABLE,
    )
    if path is not None:
        files.write(path, text.encode())
    return text
