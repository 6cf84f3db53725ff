"""What results with a figure have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(msgspec.Struct, frozen=True):
    """A result with a figure."""

    def plot(self) -> Figure:
        """A matplotlib figure (extra ``plot``).

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        raise NotImplementedError

    def to_image(self, ending: str) -> bytes:
        """The figure as a png, svg or pdf file.

        Raises
        ------
        InputError : matplotlib is not installed, or does not write that format.
        """
        from perfmodel.results.style import image

        return image(self.plot(), ending)
