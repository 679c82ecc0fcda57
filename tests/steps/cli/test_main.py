"""The command `chess-grpo`: its list of commands, their help and what they import."""

import subprocess
import sys

import pytest

from steps.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("words", "needed", "others"),
    [
        (["--help"], "click", ("torch", "mlflow", "pyarrow", "pydantic", "steps.cli.match")),
        (["uci", "--help"], "steps.cli.uci", ("torch", "pyarrow", "numpy")),
        (["card", "--help"], "steps.cli.card", ("chess", "numpy")),
    ],
)
def test_a_command_imports_nothing_that_only_others_need(words: list[str], needed: str, others: tuple[str, ...]) -> None:
    code = f"import sys; from steps.cli.main import main; main({words}); print(*sys.modules)"
    *said, modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    assert needed in modules.split()
    assert not set(others) & set(modules.split())
    assert len(words) > 1 or all(any(line.startswith(f"  {name} ") for line in said) for name in COMMANDS)


def test_no_command_imports_at_once_what_takes_a_second() -> None:
    code = "import sys; from steps.cli.main import COMMANDS, main; [main([name, '--help']) for name in COMMANDS]; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    assert {f"steps.cli.{name}" for name in COMMANDS} <= {*modules}
    assert not {"torch", "mlflow", "metaflow", "pandas", "pyarrow", "scipy", "altair", "boto3"} & {*modules}


def test_the_flows_commands_are_told_to_be_another_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "python flows/chess_grpo.py run`, or `make run CONFIG=smoke`" in capsys.readouterr().err
