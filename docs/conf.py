"""Sphinx's configuration: `make docs` builds these pages into build/site, a site with search that works offline and from a file."""

import re
import shutil
from typing import Final

from sphinx.application import Sphinx

project = "chess GRPO"
extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
root_doc = "README"
html_theme = "furo"
html_title = "chess GRPO"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
_OUTSIDE: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)#]+)[^)]*\)")


def setup(app: Sphinx) -> None:
    """Have each page read by `_inside`, and the first page be the site's index too."""
    app.connect("source-read", _inside)
    app.connect("build-finished", _index)


def _inside(_: Sphinx, name: str, source: list[str]) -> None:
    """Make links to files outside docs/, which the site does not have, the files' names; add the pages' order to the first page."""
    source[0] = _OUTSIDE.sub(lambda found: _file(found["text"], found["path"]), source[0])
    if name == root_doc:
        source[0] += "\n\n" + "\n\n".join(_toctree(title, pages) for title, pages in _contents(source[0]).items())


def _index(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def _file(text: str, path: str) -> str:
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"


def _contents(markdown: str) -> dict[str, list[str]]:
    """Return the title of each section of the first page -> the pages that it links to, each where it is met last."""
    places: dict[str, str] = {}
    title = "Start"
    for line in markdown.splitlines():
        title = line.removeprefix("## ") if line.startswith("## ") else title
        places |= dict.fromkeys(re.findall(r"\]\((\w+)\.md", line), title)
    contents: dict[str, list[str]] = {}
    for page, title in places.items():
        contents.setdefault(title, []).append(page)
    return contents


def _toctree(title: str, pages: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"])
