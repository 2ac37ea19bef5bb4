"""The terms of the report: their definitions, and where a text uses them.

A term is marked where a section first uses it: a link to the glossary at the end of the page, which page.js
shows as a tooltip. On paper it has the number of its definition.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import yaml
from markupsafe import Markup, escape


class Term(NamedTuple):
    """An entry of the glossary. words: regular expressions of what a text calls it, if not by its title."""

    title: str
    definition: str
    words: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The id of its definition."""
        return "term-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


TERMS = tuple(
    Term(entry["title"], entry["definition"], tuple(entry.get("words", ())))
    for entry in yaml.safe_load((Path(__file__).parent / "glossary.yml").read_text(encoding="utf-8"))
)
_BY_WORD = [(word, term) for term in TERMS for word in term.words or (re.escape(term.title),)]
_BY_WORD.sort(key=lambda pair: len(pair[0]), reverse=True)  # the longest name that fits a text
_OPTION = r"(?<!\S)--[a-z][a-z-]*(?: \d\w*)?"  # of a command
_WORDS = re.compile("|".join([*(rf"\b({word})(?!\w)" for word, _ in _BY_WORD), _OPTION]), re.IGNORECASE)
_LINK = Markup('<a class="term" href="#{0}" aria-describedby="{0}" data-note="{1}">{2}</a>')


class Terms:
    """Marks the terms in the texts of a page, each once in a section."""

    def __init__(self) -> None:
        self._marked: set[Term] = set()

    def begin(self) -> str:
        """Begin a section. Returns nothing to write."""
        self._marked.clear()
        return ""

    def mark(self, text: str) -> Markup:
        """The text, escaped, with its terms as links to their definitions, and options as code."""
        parts, end = [], 0
        for found in _WORDS.finditer(text):
            if found.lastindex is None:
                marked = Markup('<code class="option">{}</code>').format(found.group())
            else:
                _, term = _BY_WORD[found.lastindex - 1]
                if term in self._marked:
                    continue
                self._marked.add(term)
                marked = _LINK.format(term.key, TERMS.index(term) + 1, found.group())
            parts += [escape(text[end : found.start()]), marked]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])
