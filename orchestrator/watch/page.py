"""The page itself: one document with its script and style, which shows the messages that it gets."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator import report
from orchestrator.report.figures.theme import css_variables

SOURCES = Path(__file__).parent
REPORT_STYLE = Path(report.__file__).parent / "render" / "report.css"


@dataclass(frozen=True)
class Page:
    """A document, and the policy under which browsers show it: only its own script and style, no others."""

    text: str
    policy: str


def page(name: str) -> Page:
    """The page of a sweep with this name. All else comes in messages, which the script shows as text."""
    light, dark = css_variables()
    style = "\n".join(
        [
            f":root {{ {light} }}",
            f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
            REPORT_STYLE.read_text(encoding="utf-8"),
            (SOURCES / "page.css").read_text(encoding="utf-8"),
        ]
    )
    script = (SOURCES / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(SOURCES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    template = environment.get_template("page.html.j2")
    text = template.render(name=name, style=Markup(style), script=Markup(script))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(text, policy)


def _hash(source: str) -> str:
    """The source in a content security policy."""
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"
