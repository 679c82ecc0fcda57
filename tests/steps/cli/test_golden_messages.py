"""What a user reads who has made a mistake, word by word: `golden_messages.txt` has input and answer of each case."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import pytest
from logged_runs import LoggedRun, log_run, machine_of

from grpo.settings.tree import ConfigError, read_settings
from steps.cli.main import main

GOLDEN = Path(__file__).parent / "golden_messages.txt"
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Case:
    """Lines of the file that belong together."""

    given: tuple[str, ...]
    """Of `$` or `|`, with these marks; or a comment."""
    answer: tuple[str, ...]
    """Of `>` and `exit`."""

    @property
    def is_case(self) -> bool:
        return self.given[0][0] in "$|"

    def text(self) -> str:
        return "\n".join([*self.given, *self.answer])


def read_cases() -> list[Case]:
    blocks = [block.splitlines() for block in GOLDEN.read_text(encoding="utf-8").strip().split("\n\n")]
    return [
        Case(given=tuple(line for line in lines if line[0] in "$|#"), answer=tuple(line for line in lines if line[0] not in "$|#"))
        for lines in blocks
    ]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    """Return a folder with some files to be wrong about, and, beside it, a home with two runs."""
    root = tmp_path_factory.mktemp("golden")
    machine = machine_of(give_tables(root / "home"))
    log_run(machine, LoggedRun(name="1001"))
    log_run(machine, LoggedRun(name="1002"))
    folder = root / "work"
    (folder / "folder").mkdir(parents=True)
    (folder / "folder.toml").mkdir()
    (folder / "broken.toml").write_text('preset = "smoke"\ngrpo.num_steps 3\n')
    (folder / "ring.toml").write_text('preset = "ring.toml"\n')
    (folder / "picture.toml").write_bytes(b"\x89PNG\xff\xfe")
    (folder / "notes.txt").write_text("no games")
    return folder


@pytest.fixture
def answered(work: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Case], Case]:
    """Return what answers a case as the code does now."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("CHESS_GRPO_HOME", str(work.parent / "home"))

    def answer(case: Case) -> Case:
        if not case.is_case:
            return case
        if case.given[0].startswith("|"):
            said, code = settings_message("\n".join(line[2:] for line in case.given)), None
        else:
            said, code = typed(case.given[0][2:])
        said = _ADDRESS.sub("", said.replace(str(work.parent / "home"), "HOME").replace(str(work), "WORK"))
        lines = [f"> {line}".rstrip() for line in said.splitlines()]
        return Case(given=case.given, answer=(*lines, *([] if code is None else [f"exit {code}"])))

    def typed(line: str) -> tuple[str, int]:
        words = shlex.split(line)
        variables = [word.split("=", maxsplit=1) for word in words[: words.index("chess-grpo")]]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables:
                patch.setenv(name, value)
            capfd.readouterr()
            try:
                code = main(words[len(variables) + 1 :])
            except SystemExit as end:
                code = int(end.code or 0)
        said = capfd.readouterr()
        assert code, f"{line}: not refused"
        assert not said.out, f"{line}: said something on the standard output before it was refused"
        return said.err, code

    return answer


def settings_message(text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read_settings(text)
    return str(refusal.value)


def test_every_refusal_reads_as_it_was_read_and_approved(answered: Callable[[Case], Case]) -> None:
    cases = read_cases()
    now = [answered(case) for case in cases]
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN.write_text("\n\n".join(case.text() for case in now) + "\n", encoding="utf-8")
        pytest.skip(f"{GOLDEN.name} is written anew: read the difference, and commit it if it is wanted")
    changed = "\n".join(difference(cases, now))
    assert not changed, f"messages have changed (RENEW_GOLDEN=1 writes them anew):\n{changed}"


def difference(then: list[Case], now: list[Case]) -> Iterator[str]:
    for before, after in zip(then, now, strict=True):
        if before != after:
            yield from ("", *before.given, *list(unified_diff(before.answer, after.answer, "approved", "now", lineterm="", n=1)))


def test_every_command_refuses_something() -> None:
    from steps.cli.command_table import COMMANDS

    cases = [case for case in read_cases() if case.is_case]
    assert len({case.given for case in cases}) == len(cases)
    typed = " ".join(case.given[0] for case in cases)
    assert [name for name in COMMANDS if f"chess-grpo {name}" not in typed] == []
    assert all(case.answer for case in cases)


def test_no_refusal_speaks_of_the_code_it_comes_from() -> None:
    words = re.compile(r"Traceback|Error\b|Exception|NoneType|pydantic|argparse|errno|\bint\b|\bstr\b|tuple|dict\b", re.IGNORECASE)
    assert [line for case in read_cases() for line in case.answer if words.search(line)] == []
