"""The site of the documentation: built without a warning, whole, and without anything from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.prove
def test_the_site_has_every_page_a_search_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages | {"index", "search", "genindex"} == {path.stem for path in tmp_path.glob("*.html")}
    assert '"regret"' in (tmp_path / "searchindex.js").read_text()
    first = (tmp_path / "index.html").read_text()
    assert [page for page in sorted(pages) if f'href="{page}.html"' not in first.replace('href="#"', 'href="README.html"')] == []
    for page in tmp_path.glob("*.html"):
        assert re.findall(r"""(?:src|<link[^>]*href)=["']https?://""", page.read_text()) == []
