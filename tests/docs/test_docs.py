"""The pages hold together: links, commands, settings and metrics that they name are there, and so are the tests that show the promises."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest
from page_code import blocks

from grpo.diagnosis.checks import CHECKS
from grpo.metrics.table import EVENTS, METRICS
from grpo.settings.tree import TaskResources, read_settings
from infra.pages import PRINTED, family, settings
from steps.cli.main import COMMANDS
from steps.job.resume import _FREE
from steps.run.step import step_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CODE = ("grpo", "steps", "data_checks", "flows", "infra")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Return a page without what it shows as code, where brackets and `#` mean other things."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL))


def code_spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the names by which GitHub links the headings of a page."""
    headings = re.findall(r"^#{1,6} +(.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    seen: dict[str, int] = {}
    names = []
    for heading in headings:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.append(slug if slug not in seen else f"{slug}-{seen[slug]}")
        seen[slug] = seen.get(slug, 0) + 1
    return frozenset([*names, *re.findall(r'<a id="(\w+)">', page.read_text())])


def links(page: Path) -> list[str]:
    """Return the addresses that a page links to, those in this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(re.sub(r"\[`[^`\n]*`\]", "[]", page.read_text())))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_to_a_heading_that_are_there_and_no_page_names_a_place_of_one_machine(page: Path) -> None:
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link} is not there"
        assert not anchor or anchor in anchors(target), f"{link}: there are {sorted(anchors(target))}"
    # The checkout of the person who wrote it, temporary folders, homes.
    assert not re.findall(r"/tmp/|/work/|/root/|/home/(?!me/)\w+|file:///", page.read_text())


# --- Commands -----------------------------------------------------------------------------------------------------------------------------


def shell_lines(page: Path) -> Iterator[str]:
    """Yield the commands of a page's blocks of code, continuation lines joined; comments behind them stripped."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        if language in ("", "sh", "bash"):
            yield from re.sub(r"\\\n\s*", "", block).splitlines()


def words_of(line: str) -> list[str]:
    """Return the words of a command without the variables set before it; nothing where the line is none that a shell would take."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


COMMAND_LINES = [(name_of(page), words) for page in PAGES for line in shell_lines(page) if (words := words_of(line))]
COMMAND_SPANS = [(name_of(page), words_of(span)) for page in PAGES for span in code_spans(page) if re.match("chess-grpo [a-z]+", span)]


def test_every_make_target_and_its_settings_that_a_page_names_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = [(page, words[1:]) for page, words in COMMAND_LINES if words[0] == "make"]
    assert len(shown) > 10
    for page, words in shown:
        given = dict(word.split("=", 1) for word in words if "=" in word)
        assert {word for word in words if "=" not in word} <= targets, f"{page}: make {words}"
        assert given.keys() <= {"CONFIG", "SET", "ARGS", "PORT", "PYTHON", "VENV"}, f"{page}: make {words}"
        if not given.get("CONFIG", "").endswith(".toml"):
            read_settings(read_by_make(*(f"{name}={value}" for name, value in given.items())))


def read_by_make(*given: str) -> str:
    """Return the TOML that `make run` makes of its variables."""
    command = ["make", "--silent", "--eval", "shown: ; @$(PY) -c $(SETTINGS)", f"PY={sys.executable}", *given, "shown"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("a.b=1e-3 c = [1, 2]", {"a": {"b": 1e-3}, "c": [1, 2]}),
        ("a.b = {  c = 1 , d = 2 } e=3", {"a": {"b": {"c": 1, "d": 2}}, "e": 3}),
    ],
)
def test_make_reads_each_setting_of_set(given: str, meant: dict[str, object]) -> None:
    assert tomllib.loads(read_by_make(f"SET={given}", "CONFIG=smoke")) == {"preset": "smoke", **meant}


def test_every_call_of_the_command_that_a_page_shows_is_one_that_it_takes() -> None:
    lines = [*COMMAND_LINES, *COMMAND_SPANS]
    shown = [(page, words[1:]) for page, words in lines if Path(words[0]).name == "chess-grpo" and "..." not in words and words[1:]]
    assert len(shown) > 40
    for page, (name, *words) in shown:
        assert name in COMMANDS
        if not words:  # The command is named and not called.
            continue
        try:
            import_module(f"steps.cli.{name}").command.make_context(name, list(words))
        except click.UsageError as error:
            pytest.fail(f"{page}: chess-grpo {name} {' '.join(words)}: {error.format_message()}")


# --- Settings and metrics -----------------------------------------------------------------------------------------------------------------

SUFFIXES = (".md", ".py", ".html", ".parquet", ".json", ".jsonl", ".pgn", ".safetensors", ".toml", ".epd")
WRITTEN_BY_HAND = [page for page in PAGES if PRINTED not in page.read_text()[:300]]


def test_the_printed_pages_name_every_setting_metric_event_and_finding() -> None:
    def rows(page: str) -> set[str]:
        return set(re.findall(r"^(?:<a id=.*</a>)?([a-z_0-9/.]+) \|", (ROOT / "docs" / page).read_text(), re.MULTILINE))

    again = "python -m infra.pages"
    assert rows("configuration.md") >= {name for name, _, _ in settings()}, again
    assert rows("metrics.md") >= {family(name) for name in METRICS} | EVENTS.keys(), again
    assert rows("troubleshooting.md") >= {check.name for check in CHECKS}, again


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=name_of)
def test_every_setting_that_a_page_names_with_its_section_is_one_and_so_is_every_metric(page: Path) -> None:
    names = [name.split(".") for name, _, _ in settings()]
    known = {".".join(levels[:depth]) for levels in names for depth in range(1, len(levels) + 1)}
    known |= {f"resources.training.{name}" for name in TaskResources.model_fields} | {"resources.*"}
    sections, families = {key.partition(".")[0] for key in known}, {name.partition("/")[0] for name in METRICS}
    for span in code_spans(page):
        setting = re.fullmatch(r"((?:[a-z_]+)(?:\.[a-z_]+)+)(?: = .+)?", span)
        if setting and (name := setting[1]).partition(".")[0] in sections and not name.endswith(SUFFIXES):
            levels = name.split(".")
            is_module = any(ROOT.joinpath(*levels[:depth]).with_suffix(".py").exists() for depth in range(2, len(levels) + 1))
            assert name in known or is_module
        if re.fullmatch(r"[a-z_]+/[a-z0-9_*/]+", span) and span.partition("/")[0] in families and not (ROOT / span).exists():
            pattern = span.replace("*", "[a-z_]*") + r"(/[a-z_]+)?" * span.endswith("*")
            assert any(re.fullmatch(pattern, name) for name in METRICS), span


FOREIGN = {
    *("ROLLBACK_COMPLETE", "m7i.xlarge", "g6.xlarge", "statusReason", "logStreamName", "HF_TOKEN", "python_function", "requirements.txt"),
    *("num_generations", "per_device_train_batch_size", "epsilon_high"),
    *("champion.sh", "config.yml", "config.yml.default", "chess_grpo.changed.FIELD"),
}
"""Names of AWS, the hub, MLflow and TRL, files of users and of lichess-bot, and a pattern."""
GONE = {"benchmarks/headline.py"}
"""Scripts that pages name with the commit that has them."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_function_and_section_that_a_page_names_is_there(page: Path) -> None:
    def is_there(span: str) -> bool:
        if re.fullmatch(r"[a-z_]+\.\*", span):
            return span.removesuffix(".*") in {name.partition(".")[0] for name, _, _ in settings()}
        if re.fullmatch(r"[\w./-]+\.(py|toml|sh|ya?ml|j2|md|lock|csv|html)", span):
            return (ROOT / span).exists() or span in source() or ("/" not in span and any(ROOT.glob(f"*/{span}")))
        is_name = re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", span) and re.search(r"[_.(]|[a-z][A-Z]", span)
        return not is_name or all(re.search(rf"\b{word}\b", source()) for word in re.findall(r"\w+", span))

    assert [span for span in code_spans(page) if not (span in FOREIGN | GONE or is_there(span))] == []


def test_the_picture_of_the_datas_way_names_types_files_and_modules_that_are_there() -> None:
    [picture] = blocks("design.md", "mermaid")
    types = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", picture)) - {"MultiPV"}
    files = set(re.findall(r"\b\w+\.(?:parquet|safetensors|json|pgn)\b", picture))
    modules = set(re.findall(r"\b[a-z_]+/[a-z_]+\b", picture)) - {"checkpoints/step"}
    assert min(map(len, (types, files, modules))) >= 3
    assert [name for name in types if f"class {name}" not in source()] == []
    assert [name for name in files if name not in source()] == []
    assert [name for name in modules if not (ROOT / "grpo" / f"{name}.py").exists()] == []


@cache
def source() -> str:
    """Return all code, data beside it included."""
    kinds = {".py", ".toml", ".sh", ".yaml", ".j2", ".html", ".js", ""}
    files = [path for folder in (*CODE, "benchmarks") for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds]
    return "\n".join(path.read_text() for path in [*files, ROOT / "Makefile", ROOT / "pyproject.toml"] if path.is_file())


def test_every_message_of_ours_that_the_troubleshooting_page_lists_is_in_the_code() -> None:
    ours = (ROOT / "docs" / "troubleshooting.md").read_text().partition("\n## Said by others")[0]
    rows = re.findall(r"^\| (`.*?`) \| ", ours, re.MULTILINE)
    fragments = {part.strip(" (),;:") for row in rows for span in re.findall(r"`([^`]+)`", row) for part in re.split(r"…|W&B|\d+", span)}
    assert len(fragments) > 40
    # A message may be written in several strings, one after the other.
    texts = re.sub(r"\"\s+f?\"", "", source())
    assert {fragment for fragment in fragments if fragment not in texts} == set()


def test_the_settings_that_a_resumed_run_refuses_are_those_of_the_page() -> None:
    [row] = [line for line in (ROOT / "docs" / "howto.md").read_text().splitlines() if line.startswith("| `seed`")]
    said = {span.removesuffix(".*") for line in (row, "`policy.*`, `pretrain.*`") for span in re.findall(r"`([^`]+)`", line)}
    fixed = {name for step in ("join_boards", "pretrain") for name in step_of(step).reads}
    assert said == {name for name in fixed if not name.startswith("language.") and name not in _FREE}


def test_every_variable_of_ours_is_on_the_page_of_the_environment_and_no_other() -> None:
    variable = re.compile(r"CHESS_GRPO_[A-Z_]*[A-Z]")
    sources = [path for folder in CODE for kind in ("*.py", "*.sh") for path in (ROOT / folder).rglob(kind)]
    named = {name for path in sources for name in variable.findall(path.read_text())}
    assert set(variable.findall((ROOT / "docs" / "commands.md").read_text())) == named


# --- Promises -----------------------------------------------------------------------------------------------------------------------------


TESTS = re.compile(r"`(?:(prove|soak) )?([\w/]+\.py)::(test_\w+)`")
ROWS = [line.split(" | ") for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if TESTS.search(line)]


def marks_of(file: str, test: str) -> set[str]:
    """Return the names of pytest's marks of a test function and of its module."""
    module = ast.parse((ROOT / "tests" / file).read_text())
    [function] = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == test]
    of_module = [node for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    texts = [ast.unparse(node) for node in (*function.decorator_list, *of_module)]
    return {mark for text in texts for mark in re.findall(r"pytest\.mark\.(\w+)", text)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_each_promise_has_a_quick_test_or_a_heavy_one_that_runs_when_it_says_so(row: list[str]) -> None:
    for when, file, test in TESTS.findall(row[2]):
        marks = marks_of(file, test)
        assert marks & {"prove", "soak"} == {when} - {""}
        assert not marks & {"skip", "xfail"}
