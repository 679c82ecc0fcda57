"""A third kind of policy in one file: it plays the first legal move in the order of UCI, and "imitates" nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chess
import torch

from grpo.base.files import read_json, sha256_json, write_json
from grpo.metrics.records import Record
from grpo.policy.files import write_facts
from grpo.settings.grpo import GrpoConfig
from grpo.settings.kinds import Kind
from steps.cards.charts import Figure
from steps.cards.page import CardPart, Seen
from steps.names import REPORT
from steps.run.kinds import Parts, Variant
from steps.run.work import Work

NAME = "toy"
_FILE = "toy.json"


def check(settings: Any) -> str:
    return f"a toy of seed {settings.seed}"


def start_hashes(settings: Any) -> dict[str, str]:
    return {"toy": "begins with nothing"}


def load_ranker(folder: Path, device: torch.device) -> Callable[[chess.Board], tuple[list[str], list[float]]]:
    assert read_json(folder / _FILE) == {"weights": "none"}
    return lambda board: (sorted(move.uci() for move in board.legal_moves)[:1], [])


class ToyPlayer:
    name = NAME

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        return [min(board.legal_moves, key=chess.Move.uci) for board in boards]


class ToyCompetitor:
    def __init__(self, folder: Path) -> None:
        self.weights = sha256_json(read_json(folder / _FILE))

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> ToyPlayer:
        return ToyPlayer()


def open_competitor(folder: Path, device: torch.device, settings: Any) -> ToyCompetitor:
    return ToyCompetitor(folder)


def body(work: Work) -> None:
    """Write the policy and the report."""
    write_json(work.folder / _FILE, {"weights": "none"})
    write_facts(work.folder, {"kind": NAME}, [_FILE])
    work.log(Record(work.settings.pretrain.num_steps, {"imitation/top1": 1.0}))
    write_json(work.folder / REPORT, {"num_steps": work.settings.pretrain.num_steps})


FIGURES = {"pretrain": (Figure("first moves", ("imitation/top1",)),), "finetune": ()}


def more_parts(seen: Seen) -> list[CardPart]:
    return []


def refuse(section: None, grpo: GrpoConfig, imitation_rate: float | None) -> None:
    if grpo.kl_coefficient:
        raise ValueError("a toy has no reference: grpo.kl_coefficient must be 0")


KIND = Kind(
    module=__name__,
    has_probabilities=False,
    defaults={"pretrain": {"num_steps": 0}, "grpo": {"kl_coefficient": 0.0}},
    refuse=refuse,
    can_skip_imitation=True,
)
PARTS = Parts(
    competitor=__name__,
    figures=__name__,
    variants={"pretrain": Variant(module=__name__, shows=("imitation/top1",), headlines=("imitation/top1",))},
)
CARD = '{% set imitated = "nothing" %}{% macro pretrained(report, tasks) %}<p>A toy of {{ report.num_steps }} steps.</p>{% endmacro %}'
WORDS = """
{% set imitated = "nothing" %}{% set nats = "toy nats" %}{% set has_entropy_controller = false %}
{% macro subject() %}
A toy that plays the first legal move,
{% endmacro %}
{% macro view(described) %}{% endmacro %}
{% macro resignation() %}{% endmacro %}
{% macro loading() %}{% endmacro %}
{% macro limits(described) %}
- A toy learns nothing.
{% endmacro %}
{% macro license(described) %}{% endmacro %}
{% macro imitation(made) %}
- The toy imitated for {{ made.num_steps }} steps.
{% endmacro %}
"""
"""Templates of the two rooms of pages."""
