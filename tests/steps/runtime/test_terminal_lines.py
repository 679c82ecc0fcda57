"""Sentences fit a terminal; files and pipes get them whole."""

import io

import pytest

from steps.runtime.terminal_lines import say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_lines_that_fit_and_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command, path = "`chess-grpo match champion stockfish:nodes=1 --pairs 3`", "/home/someone/with/a/long/path/to/its/champion"
    text = f"a table    of  1\n  seen    entropy fell from 3.24 to 0.04 by step 3,143; {command} plays {path}"
    terminal, pipe = Terminal(), io.StringIO()
    say(text, terminal)
    say(text, pipe)
    assert terminal.getvalue().splitlines() == [
        "a table    of  1",
        "  seen    entropy fell from 3.24 to 0.04",
        "          by step 3,143;",
        f"          {command}",
        "          plays",
        f"          {path}",
    ]
    assert pipe.getvalue() == f"{text}\n"
