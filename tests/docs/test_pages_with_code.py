"""The examples of docs/library.md run as they stand, one after the other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CPU, TINY, some_boards
from made_boards import write_boards
from page_code import blocks

from grpo.policy.policy import new_policy


def test_what_the_page_says_of_its_examples_is_so(
    stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("champion", "boards"):
        (tmp_path / name).mkdir()
    new_policy(TINY, seed=1, device=CPU).save(tmp_path / "champion")
    write_boards(tmp_path / "boards", some_boards(40), num_train=30)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
    names: dict[str, Any] = {}
    for block in blocks("library.md"):
        exec(compile(block, "library.md", "exec"), names)
    assert "<" not in (printed := capsys.readouterr().out), f"an object and not its value: {printed}"
    legal = {move.uci() for move in names["board"].legal_moves}
    assert set(names["table"].moves) == set(names["probabilities"]) == legal
    assert names["best"] == "f3f7", "mate"
    assert (names["result"].num_openings, len(names["result"].games)) == (2, 4), "an opponent of one's own plays pairs of games"
    assert names["rates"][-1] > names["rates"][0], "a reward of one's own is learned"
    trained, start = names["trainer"].policy.network.state_dict(), names["policy"].network.state_dict()
    assert any(not torch.equal(trained[name], start[name]) for name in start), "by a copy"
    assert names["temperatures"] == pytest.approx([1.5, 1.4, 1.32]), "a controller of one's own is used"
