"""What results with a figure, and those with a page, have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure as Drawing

    from perfmodel.reporting.contents import Figure, Page


class Drawn(msgspec.Struct, frozen=True):
    """A result with a figure."""

    def figure(self) -> Figure:
        """The contents of the figure."""
        raise NotImplementedError

    def plot(self) -> Drawing:
        """The figure, drawn with matplotlib (extra ``plot``).

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        from perfmodel.reporting import images

        images.empty(1, 1)  # before anything is simulated for it
        return images.draw(self.figure())

    def to_image(self, ending: str) -> bytes:
        """The figure as a png, svg or pdf file.

        Raises
        ------
        InputError : matplotlib is not installed, or does not write that format.
        """
        from perfmodel.reporting import images

        return images.image(self.plot(), ending)


class Paged(Drawn, frozen=True):
    """A result with a figure and a page."""

    def page(self) -> Page:
        """The contents of the page."""
        raise NotImplementedError

    def report(self, path: str | Path | None = None) -> str:
        """Return a self-contained HTML page and write it to ``path``, if given (extra ``report``).

        Raises
        ------
        InputError : Bokeh is not installed, or ``path`` cannot be written.
        """
        from perfmodel.reporting import page

        page.check()
        return page.html(self.page(), path)
