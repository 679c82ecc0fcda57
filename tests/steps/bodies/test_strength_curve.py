"""The strength curve of `finetune`: few games at each checkpoint that are repeatable, change no weights and end no training."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import CPU, TINY, some_boards
from listeners import Listener
from made_boards import write_boards
from made_training import in_store
from scripted_engine import ScriptedEngine

from grpo.base.files import read_json, write_json
from grpo.base.seeding import numpy_stream
from grpo.board.encoding import key_of_fen, turned_fen
from grpo.engine.answers import EngineError
from grpo.engine.identity import EngineIdentity
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.learning.checkpoints import save_policy, verified_manifest
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import METRICS, Record
from grpo.play.ladder import Ladder, Rung
from grpo.play.matches import Adjudication, End, MatchResult, PlayedGame
from grpo.play.openings import make_openings
from grpo.play.players import BestMovePlayer
from grpo.policy.distribution import new_policy
from grpo.settings.tree import ConfigError, Settings, read_settings
from steps.bodies.finetune import finetune_policy
from steps.bodies.selection_games import CONFIRMATION, LADDER, PREVIOUS, SAMPLED, SCREENING
from steps.bodies.strength_curve import StrengthCurve, curve_metrics, nearest_rungs, rungs_text
from steps.step_io.dataset import position_keys
from steps.step_io.names import REPORT
from steps.step_io.work import read_history

SMALL = """
preset = "test"
grpo.num_steps = 4
grpo.states_per_step = 8
grpo.group_size = 4
grpo.steps_per_checkpoint = 2
grpo.learning_rate = 5e-3
grpo.self_play.fraction = 0.0
evaluation.max_plies = 30
evaluation.adjudication_depth = 2
"""
RUNGS: list[dict[str, Any]] = [
    {"name": "random", "nodes": 1, "random_share": 1.0, "rating": 0.0},
    {"name": "stockfish-1-nodes, 50 % random", "nodes": 1, "random_share": 0.5, "rating": 300.0},
]
STRENGTH = [name for name in METRICS if name.startswith("strength/")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Boards with made-up values, and a fresh policy."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("boards", "pretrained")}
    write_boards(folders["boards"], some_boards(24), num_train=16)
    save_policy(folders["pretrained"], new_policy(TINY, seed=0, device=CPU), TINY)
    return folders


def finetuned(
    home: Path,
    inputs: Mapping[str, Path],
    engine_path: str,
    *,
    changes: str = "",
    rungs: Sequence[Mapping[str, Any]] = RUNGS,
    listener: Listener | None = None,
    said: list[str] | None = None,
) -> Path:
    """Return the output of a tiny fine-tuning with a strength curve."""
    return in_store(
        home,
        lambda work: finetune_policy(
            read_settings(SMALL + changes),
            **inputs,
            checkpoint=None,
            facts={},
            engine=EngineIdentity(name="Stockfish", sha256="0" * 64),
            engine_path=engine_path,
            num_processes=1,
            cache_folder=None,
            device=CPU,
            work=work,
            rungs=rungs,
        ),
        sinks=() if listener is None else (listener,),
        said=[] if said is None else said,
    )


@pytest.fixture(scope="module")
def whole(inputs: dict[str, Path], stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listener]:
    """Return an undisturbed run, and what its sinks heard."""
    listener = Listener()
    return finetuned(tmp_path_factory.mktemp("whole"), inputs, stockfish, listener=listener), listener


def points(folder: Path) -> dict[int, dict[str, float]]:
    """Return the points of the curve by step."""
    found = {record.step: {name: record.metrics[name] for name in STRENGTH if name in record.metrics} for record in read_history(folder)}
    return {step: metrics for step, metrics in found.items() if metrics}


# The curve in the history.


def test_start_and_checkpoints_have_a_point_with_its_interval(whole: tuple[Path, Listener]) -> None:
    curve = points(whole[0])
    assert list(curve) == [0, 2, 4]
    for metrics in curve.values():
        assert metrics.keys() == set(STRENGTH)
        for name in ("rating", "score_as_played", "score_adjudicated"):
            low, middle, high = (metrics[f"strength/{name}{end}"] for end in ("_low", "", "_high"))
            assert low <= middle <= high
            assert low < high


def test_the_curve_changes_neither_the_weights_nor_anything_else_of_the_history(
    whole: tuple[Path, Listener], inputs: dict[str, Path], tmp_path: Path
) -> None:
    without = finetuned(tmp_path, inputs, "/no/such/engine", changes="grpo.num_curve_pairs = 0")
    assert points(without) == {}
    assert read_json(without / REPORT)["weights"] == read_json(whole[0] / REPORT)["weights"]
    rest = [
        Record(record.step, {name: value for name, value in record.metrics.items() if name not in STRENGTH}, record.events)
        for record in read_history(whole[0])
    ]
    assert rest == read_history(without)


def test_without_a_ladder_there_is_no_curve(inputs: dict[str, Path], tmp_path: Path) -> None:
    assert points(finetuned(tmp_path, inputs, "/no/such/engine", rungs=())) == {}


def test_a_kill_changes_no_point_and_what_was_measured_is_not_played_again(
    whole: tuple[Path, Listener], inputs: dict[str, Path], stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, measured, steps = GrpoTrainer.step, StrengthCurve.measured, []

    def failing(trainer: GrpoTrainer) -> Record:
        if trainer.num_steps_done == 3 and not steps[2:]:
            raise ZeroDivisionError
        return step(trainer)

    def counted(curve: StrengthCurve, player: Any) -> dict[str, float]:
        steps.append(player)
        return measured(curve, player)

    monkeypatch.setattr(StrengthCurve, "measured", counted)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):  # noqa: PT012
        patch.setattr(GrpoTrainer, "step", failing)
        finetuned(tmp_path, inputs, stockfish)
    assert len(steps) == 2, "the start, and step 2"
    folder = finetuned(tmp_path, inputs, stockfish)
    assert len(steps) == 3, "and step 4"
    assert verified_manifest(folder)["output_hash"] == verified_manifest(whole[0])["output_hash"]


def test_an_engine_that_fails_leaves_points_out_and_says_so_and_training_ends_as_without(
    whole: tuple[Path, Listener],
    inputs: dict[str, Path],
    scripted: Callable[..., ScriptedEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpo.engine.pool._MAX_FAILURES_IN_A_ROW", 2)  # A Python engine takes long to start.
    said: list[str] = []
    folder = finetuned(tmp_path / "home", inputs, scripted(start="dies").path, said=said)
    events = [(record.step, event.name) for record in read_history(folder) for event in record.events]
    assert events == [(step, "strength_not_measured") for step in (0, 2, 4)]
    assert any("step 2: strength_not_measured: " in line for line in said)
    assert points(folder) == {}
    assert read_json(folder / REPORT)["weights"] == read_json(whole[0] / REPORT)["weights"]


# One point.


def curve_of(inputs: Mapping[str, Path], engine_path: str, settings: Settings, **given: Any) -> StrengthCurve:
    return StrengthCurve(settings, RUNGS, boards=inputs["boards"], engine_path=engine_path, num_processes=given.get("num_processes", 1))


def player(seed: int) -> BestMovePlayer:
    return BestMovePlayer(new_policy(TINY, seed=seed, device=CPU), "policy")


@pytest.mark.prove
def test_all_points_share_their_openings_and_equal_players_get_equal_games(inputs: dict[str, Path], stockfish: str) -> None:
    settings = read_settings(SMALL + "grpo.num_curve_pairs = 3")
    curve = curve_of(inputs, stockfish, settings)
    first, other, again = (curve.played(player(seed)) for seed in (0, 1, 0))
    elsewhere = curve_of(inputs, stockfish, settings, num_processes=2).played(player(0))
    assert [game.opening for result in first for game in result.games] == [game.opening for result in other for game in result.games]
    assert first == again == elsewhere
    assert first != other
    assert [len(result.games) for result in first] == [6, 6]


@pytest.mark.prove
def test_no_opening_serves_two_rungs_or_is_a_board_of_the_dataset_or_one_of_the_selection(inputs: dict[str, Path], stockfish: str) -> None:
    settings = read_settings(SMALL + "grpo.num_curve_pairs = 5")
    results = curve_of(inputs, stockfish, settings).played(player(0))
    keys = [{key_of_fen(turned_fen(game.opening)) for game in result.games} for result in results]
    assert [len(part) for part in keys] == [5, 5]
    used = keys[0] | keys[1]
    assert len(used) == 10
    assert not used & position_keys(inputs["boards"])
    with EnginePool(stockfish, num_processes=1, options={"Hash": PLAYING_HASH_MIB}) as pool:
        for stage in (f"{SCREENING} 0", f"{CONFIRMATION} 0", f"{PREVIOUS} 0", SAMPLED, LADDER, "baseline"):
            rng = numpy_stream(settings.seed, "openings", stage)
            openings = make_openings(settings.evaluation, count=20, rng=rng, pool=pool, exclude=set())
            assert not used & {key_of_fen(turned_fen(opening)) for opening in openings}


def match(*scores: float, adjudicated: float | None = None, num_failed: int = 0) -> MatchResult:
    """Return an adjudicated match with these scores of its games."""
    games = tuple(
        PlayedGame(
            opening=f"{number // 2} w - - 0 1",
            first_is_white=number % 2 == 0,
            moves=(),
            end=End.REPETITION if score == 0.5 else End.CHECKMATE,
            score=score,
            adjudicated=adjudicated if score == 0.5 else None,
        )
        for number, score in enumerate(scores)
    )
    return MatchResult(first="a", second="b", games=games, adjudication=Adjudication(depth=2, centipawns=250, num_failed=num_failed))


def test_a_point_worked_by_hand() -> None:
    found = curve_metrics([100.0, 300.0], [match(1, 0, 1, 0.5), match(0.5, 0, 0, 1)])
    # By symmetry: 2.5 of 4 against the weaker, 1.5 of 4 against the stronger.
    assert found["strength/rating"] == pytest.approx(200)
    assert found["strength/rating_high"] - 200 == pytest.approx(200 - found["strength/rating_low"])
    assert found["strength/score_as_played"] == 0.5
    assert found.keys() == set(STRENGTH)
    assert all(math.isfinite(value) for value in found.values())


def test_only_undecided_games_are_scored_otherwise_when_adjudicated() -> None:
    found = curve_metrics([0.0, 100.0], [match(0.5, 0.5, adjudicated=1.0), match(0, 0, adjudicated=1.0)])
    assert (found["strength/score_as_played"], found["strength/score_adjudicated"]) == (0.25, 0.5)


def test_a_game_that_the_engine_could_not_adjudicate_is_no_draw(
    inputs: dict[str, Path], stockfish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.bodies.strength_curve.play_adjudicated", lambda *_, **__: match(0.5, 0.5, num_failed=1))
    with pytest.raises(EngineError, match="of 2 games, which could not be adjudicated"):
        curve_of(inputs, stockfish, read_settings(SMALL)).measured(player(0))


# The opponents.


def test_the_opponents_are_the_rungs_that_placed_the_pretrained_policy(tmp_path: Path) -> None:
    rungs = tuple(Rung(nodes=1, random_share=share) for share in (1.0, 0.5, 0.25))
    ladder = Ladder(rungs=rungs, ratings=np.array([0.0, 312.34, 500.0]), covariance=np.zeros((3, 3)))
    for name, facts in (
        ("calibrated", ladder.facts()),
        ("baseline", {"ladder": {"games": [{"rung": rungs[1].name}, {"rung": rungs[2].name}], "probes": [{"rung": "random"}]}}),
    ):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / REPORT, facts)
    found = nearest_rungs(tmp_path / "calibrated", tmp_path / "baseline")
    assert [(rung["random_share"], rung["rating"]) for rung in found] == [(0.5, 312.3), (0.25, 500.0)]
    assert rungs_text(found) == "stockfish-1-nodes, 50 % random at 312.3 Elo, stockfish-1-nodes, 25 % random at 500.0 Elo"


def test_a_language_model_has_no_curve() -> None:
    assert read_settings("language").grpo.num_curve_pairs == 0
    with pytest.raises(ConfigError, match="num_curve_pairs must be 0"):
        read_settings('preset = "language"\ngrpo.num_curve_pairs = 4')
