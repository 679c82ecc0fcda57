"""Samples of output in README and tutorial are the code's, README's numbers those of docs/results.md, its means those of their seeds."""

import ast
import json
import re
from pathlib import Path

from grpo.match.ladder import BaselineReport, make_rungs
from grpo.match.selection import Selection
from grpo.match.strength import strength_in_words
from grpo.metrics.table import METRICS
from grpo.settings.tree import read_settings
from grpo.statistics.intervals import Estimate, Unit, claimed_mean
from steps.pages.results import Results
from steps.pages.templates import verdict_lines

ROOT = Path(__file__).parents[2]
PAGES = {"README": ROOT / "README.md", **{name: ROOT / "docs" / f"{name}.md" for name in ("tutorial", "results", "language")}}
VERDICT = json.loads((Path(__file__).parent / "verdicts.json").read_text())
"""Reports of `baseline` and `select`, from README's smoke run."""


def sample(page: str, begins: str) -> str:
    [text] = re.findall(rf"^```text\n({begins}.*?)^```", PAGES[page].read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_verdict_that_readme_shows_is_printed_by_the_code_and_the_tutorial_explains_its_numbers() -> None:
    decision, baseline = Selection.model_validate(VERDICT["decision"]), BaselineReport.model_validate(VERDICT["baseline"])
    rungs = make_rungs(read_settings('preset = "smoke"').evaluation)
    results = Results.model_construct(decision=decision, strength=strength_in_words(decision, baseline, rungs), origin=None)
    shown = sample("README", "Verdict: ")
    assert shown.splitlines() == verdict_lines(results)
    explained = PAGES["tutorial"].read_text().partition("\n## 2. ")[2].partition("\n## ")[0]
    intervals = re.findall(r"`(\[.*?\])`", explained)
    assert intervals
    assert all(interval in shown for interval in intervals)


def fixed_words(line: str) -> set[str]:
    """Return what of a line is neither a number, nor a length of time, nor the name of a metric."""
    shown = "|".join(sorted({name.rpartition("/")[2] for name in METRICS}))
    line = re.sub(rf"\b({shown})(_low|_high)? -?[\d.]+", "0", line)
    line = re.sub(r"\b\d+ (h \d+ min|min \d+ s|s\b)", "0", line)
    return {part.strip(" ,;:/") for part in re.split(r"\d[\d,.]*(?:/s)?|: |, ", line)} - {"", "..."}


def test_the_words_of_the_tutorials_log_are_in_the_code() -> None:
    files = [path for folder in ("steps", "grpo") for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    printed = {part.strip(" ,;:/") for text in texts for part in re.split(r"\n|: |, ", text)}
    lines = sample("tutorial", "build_boards: ").splitlines()
    assert len(lines) > 10
    assert {line: lacking for line in lines if (lacking := fixed_words(line) - printed)} == {}


def measured() -> dict[str, str]:
    """Return label -> result of the first table of docs/results.md."""
    rows = [line.strip("| ").split(" | ") for line in PAGES["results"].read_text().splitlines()]
    return {cells[0]: cells[1] for cells in rows if len(cells) == 3}


def mean_of(seeds: str) -> str:
    """Return the text of the mean of each seed's gain, with the interval for a claim. A gain without an interval counts as exact."""
    gains = re.findall(r"([+-]\d+)(?: Elo)?(?: \[([+-]\d+), ([+-]\d+)\])?", seeds)
    runs = [Estimate(value=float(value), low=float(low or value), high=float(high or value)) for value, low, high in gains]
    mean = claimed_mean(runs)
    assert mean is not None
    return mean.text(Unit.ELO, suffix=" Elo")


def test_each_mean_of_the_results_page_is_that_of_its_seeds_with_the_wider_interval() -> None:
    parts = [part.replace("**", "").partition("]") for cell in measured().values() for part in re.split(r"mean (?=[*+-])", cell)[1:]]
    language = dict(re.findall(r"^\| (.*?) \| (.*\])", PAGES["language"].read_text(), re.MULTILINE))
    whole = " ".join(PAGES["language"].read_text().split())
    for label in ("as played", "ladder gain as played, 120 pairs each"):
        assert (mean := mean_of(language[label])) in whole
        assert mean in measured()["language model against its own start, seeds 71 to 73"].replace("**", "")
    assert len(parts) == 7
    for mean, _, seeds in parts:
        assert f"{mean}]" == mean_of(seeds)


def test_the_numbers_of_readme_are_those_of_the_results_page() -> None:
    readme, rows = PAGES["README"].read_text(), measured()
    [own] = re.findall(r"^mean (\+\d+) Elo", rows["default run: games against its own start"])
    [(gain, interval)] = re.findall(r"\*\*(\+\d+) Elo (\[.*?\])\*\*", rows["default run: ladder gain"])
    said = " ".join(readme.partition("\n## Result\n")[2].partition("\n## ")[0].split())
    assert f"{gain} Elo {interval}" in said
    assert f"{own} Elo" in said
