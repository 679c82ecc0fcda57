"""Cards that cannot be drawn, and text of strangers on cards that can."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_games import random_pgn
from made_work import work_in
from presets import TEST, tiny_settings

from grpo.diagnosis.records import Record
from grpo.engine.identity import EngineIdentity
from grpo.settings.tree import read_settings
from steps import build_boards, check_boards, finetune, join_boards
from steps.cards import live
from steps.cards.live import LiveCard
from steps.check_boards import DATA_DOCS
from steps.run.names import SUMMARY
from steps.run.work import Work

SETTINGS = tiny_settings().model_dump(mode="json")
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>[x](javascript:y)"


class Card:
    """A card that breaks when so many things have been put on it."""

    def __init__(self, num_sound: float = float("inf")) -> None:
        self.components: list[Any] = []
        self._num_sound = num_sound

    def append(self, component: Any, id: str) -> None:  # noqa: A002
        """Take a component."""
        self.refresh()
        self.components.append(component)

    def refresh(self) -> None:
        """Draw."""
        if len(self.components) >= self._num_sound:
            raise ConnectionError("no room for a card")


@pytest.mark.parametrize("num_sound", [0, 3, 8])
def test_a_card_that_breaks_is_told_once_and_never_drawn_again(
    num_sound: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = Card(num_sound)
    monkeypatch.setattr(live, "current", SimpleNamespace(card={"finetune": card}))
    monkeypatch.setattr(live, "_LEAST_SECONDS", -1.0)
    monkeypatch.setattr(live, "_FRACTION", -1.0)
    sink = LiveCard("finetune", finetune.card, SETTINGS)
    for step in range(1, 4):
        sink.log(Record(step, {"grpo/entropy": 2.0}))
        sink.progress(step, 3, "steps")
    assert len(card.components) == num_sound
    assert capsys.readouterr().out.count("card finetune: WARNING: ConnectionError: no room for a card") == 1


def test_html_in_the_headers_of_games_and_in_their_files_name_is_text_everywhere(
    stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = random_pgn(60).replace('[Event "?"]', f'[Event "{EVIL}"]').replace('[Site "?"]', f'[Site "{EVIL}"]')
    text = text.replace('[White "', f'[Annotator "{EVIL}"]\n[White "{EVIL}').replace('[Black "b"]', f'[Black "{EVIL}"]')
    text = text.replace(" 2. ", f" {{{EVIL}}} 2. ")
    assert text.count(EVIL) == 60 * 6
    text += f'[Event "{EVIL}"]\n[Result "*"]\n\n1. e4 {EVIL.split("(", maxsplit=1)[0]} *\n\n[Variant "{EVIL}"]\n\n1. e4 *\n'
    path = tmp_path / f"{EVIL.replace('/', '')}.pgn"
    path.write_text(text)
    boards = {"files": [str(path)], "num_train": 30, "num_validation": 9, "num_heldout": 9, "num_units": 1}
    given = {"preset": TEST, "boards": boards, "grpo": {"states_per_step": 6}}
    settings = read_settings(json.dumps(given))
    monkeypatch.setattr(Work, "engine", EngineIdentity(name=EVIL, sha256="0" * 64))
    folders = {name: tmp_path / name for name in ("units", "joined", "checks")}
    units = work_in(folders["units"], settings, stockfish=stockfish)
    joined = work_in(folders["joined"], settings, parts=[units.folder])
    checks = work_in(folders["checks"], settings, inputs={"boards": joined.folder})
    card = Card()
    monkeypatch.setattr(live, "current", SimpleNamespace(card={"check_boards": card}))
    for step, work in ((build_boards, units), (join_boards, joined), (check_boards, checks)):
        step.body(work)
        work.write_history()
    LiveCard("check_boards", check_boards.card, SETTINGS).finished(checks.folder, is_reused=False)
    folder = checks.folder
    docs = list((folder / DATA_DOCS).rglob("*.html"))
    shown = {page.name: page.read_text(encoding="utf-8") for page in (folder / SUMMARY, *docs)}
    rendered = [component.render() for component in card.components]
    # Metaflow's Markdown may hold HTML, and here holds nothing else.
    assert {part["type"] for part in rendered} == {"markdown"}
    assert all(part["source"].startswith(("\n<div", "\n<style", "<div", "<style")) for part in rendered)
    shown["card"] = json.dumps(rendered)
    assert len(docs) >= 8
    for name in (SUMMARY, "card"):
        assert "alert" in shown[name], "the file's name is shown"
    for name, content in shown.items():
        assert "<script>alert" not in content, name
        assert "<img src=x" not in content, name
    assert "](javascript:" not in shown[SUMMARY] + shown["card"], "Markdown has markup of its own"
