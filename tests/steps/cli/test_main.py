"""The command `chess-grpo`: its list of commands, their help and what they import."""

import subprocess
import sys
from collections.abc import Callable

from steps.cli.main import COMMANDS

Run = Callable[..., tuple[int, str, str]]


def test_a_command_imports_nothing_that_only_others_need() -> None:
    code = "import sys; from steps.cli.main import main; main([{!r}, '--help']); print(sorted(sys.modules))"

    def modules(command: str) -> str:
        return subprocess.run([sys.executable, "-c", code.format(command)], check=True, capture_output=True, text=True).stdout

    uci = modules("uci")
    assert "'torch'" not in uci
    assert "'pyarrow'" not in uci
    assert "'steps.cli.uci'" in uci, "so that the test can fail"


def test_the_list_of_commands_needs_none_of_their_modules(console: Run) -> None:
    code, said, _ = console("--help")
    assert code == 0
    assert all(f"\n  {name}" in said for name in COMMANDS)
    script = "import sys; from steps.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert not [name for name in ("torch", "mlflow", "pyarrow", "pydantic", "steps.cli.match") if f"'{name}'" in loaded]


def test_a_reader_that_has_gone_is_no_error_of_ours() -> None:
    script = (
        "import steps.cli.main as c, steps.cli.runs as r; r.command.callback = lambda **_: print(*['x' * 100] * 10_000, sep='\\n');"
        " c.main(['runs'])"
    )
    done = subprocess.run(["bash", "-c", f'{sys.executable} -c "{script}" | head -1'], capture_output=True, text=True, check=True)
    assert (len(done.stdout), done.stderr) == (101, "")
