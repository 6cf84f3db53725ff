"""Reads the tables of a page and finds what a page would load."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Tables(HTMLParser):
    """Cells of the tables of a page by table name: exact values as text, and shown text."""

    def __init__(self) -> None:
        super().__init__()
        self.exact: dict[str, list[list[str]]] = {}
        self.loads: list[str] = []
        self._rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "table":
            self._rows = self.exact.setdefault(given["data-name"], [])
        elif tag == "tr":
            self._rows.append([])
        elif tag == "td":
            self._rows[-1].append(given["data-value"])
        elif "src" in given or (tag == "link" and not given["href"].startswith("data:")):
            self.loads.append(self.get_starttag_text() or tag)


def tables(text: str) -> dict[str, list[list[str]]]:
    """Rows of each table, without the header."""
    reader = Tables()
    reader.feed(text)
    return {name: [row for row in rows if row] for name, rows in reader.exact.items()}


def loads(text: str) -> list[str]:
    """Elements and style sheets through which a page would load something."""
    reader = Tables()
    reader.feed(text)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
    return reader.loads + re.findall(r"url\([^)]*\)|@import[^;]*", style)
