"""The step `select`: every stage on openings of its own, a champion only where one was shown, and a report that says all of it."""

import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest
from doubles import CPU, TINY, made_up_number, some_boards
from made_boards import write_boards
from speakers import Answer, ScriptedSpeaker, naming

from grpo.base.files import CorruptError, file_hashes, read_json, sha256_file, write_json, write_manifest
from grpo.board.encoding import position_key
from grpo.board.phases import PHASES
from grpo.engine.identity import EngineIdentity
from grpo.evaluation.regret import HeldoutScores
from grpo.evaluation.verdict import BETTER_THAN_INITIAL, BETTER_THAN_PREVIOUS, LadderFinding, Verdict
from grpo.learning.checkpoints import (
    NETWORK_FORMAT,
    TrainingState,
    load_checkpoint,
    load_policy,
    save_checkpoint,
    save_policy,
    weights_hash,
)
from grpo.play.highlights import NUM_HIGHLIGHTS
from grpo.play.matches import MatchResult
from grpo.play.players import BestMovePlayer
from grpo.play.replies import Reply, ReplyCounts
from grpo.policy.distribution import Policy, new_policy
from grpo.policy.files import ACTION_TABLE_HASH, LANGUAGE_WEIGHTS, POLICY, WEIGHTS
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import Settings, read_settings
from grpo.statistics.intervals import Estimate, elo, holm
from steps.bodies import select as selecting
from steps.bodies import selection_games
from steps.bodies.calibrate import calibrate_ladder
from steps.bodies.game_cache import TaskPart
from steps.bodies.screen import SelectionError, precompute_games
from steps.bodies.select import select_champion
from steps.bodies.selection_games import CONFIRMATION, INITIAL, LADDER, PREVIOUS, SAMPLED, SCREENING
from steps.policies import language as language_policies
from steps.policies import network as network_policies
from steps.policies.language import LanguageCompetitor
from steps.step_io.aliases import CHAMPION, PEAK, PRETRAINED_STEP
from steps.step_io.names import CHECKPOINTS, DECISIONS, GAMES_PAGE, HISTORY, PGN, REPORT
from steps.step_io.results import DecisionFacts
from steps.step_io.work import Work, read_history

STEPS = (2, 4, 6)
REGRETS = {2: 0.20, 4: 0.21, 6: 0.22}
BEST = 4
"""The step that is made to play well."""
NUM_BOARDS = 12
MAIN = """
preset = "test"
selection.num_candidates = 3
selection.num_confirmation_pairs = 8
evaluation.max_plies = 20
evaluation.adjudication_depth = 4
"""
ONE = "selection.num_candidates = 1\n"
"""One candidate, which has no screening games."""


class Quitter:
    """Plays a policy's likeliest moves, and gives the game up after a few: who does not wins every game against it."""

    def __init__(self, policy: Policy, name: str) -> None:
        self.name = name
        self._player = BestMovePlayer(policy, name)

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[Reply]:
        moves = self._player.choose(boards, games)
        return [
            Reply(move=move if len(board.move_stack) < 6 else None, counts=ReplyCounts()) for move, board in zip(moves, boards, strict=True)
        ]


@dataclass(frozen=True)
class Inputs:
    """What the step takes in."""

    boards: Path
    pretrained: Path
    finetuned: Path
    calibrated: Path


def write_finetuned(folder: Path, steps: Sequence[int] = STEPS, regrets: dict[int, float] | None = None) -> Path:
    """Write a checkpoint of fresh weights for each step, and their history."""
    (folder / CHECKPOINTS).mkdir(parents=True)
    for step in steps:
        state = TrainingState(step=step, optimiser={"state": {}, "param_groups": []}, controllers={}, facts={})
        save_checkpoint(folder / CHECKPOINTS, new_policy(TINY, seed=step, device=CPU), TINY, state, NETWORK_FORMAT)
    rows = [
        {"step": step, "heldout/regret_best": regret, "heldout/regret_best_stderr": 0.01}
        for step, regret in (REGRETS if regrets is None else regrets).items()
    ]
    (folder / HISTORY).write_text("".join(f"{json.dumps(row)}\n" for row in ({"step": 1, "grpo/entropy": 2.0}, *rows)))
    return folder


@pytest.fixture(scope="module")
def inputs(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Boards, a fresh policy, three checkpoints and a ladder."""
    root = tmp_path_factory.mktemp("inputs")
    for name in ("boards", "pretrained", "calibrated"):
        (root / name).mkdir()
    write_boards(root / "boards", dataset_boards())
    save_policy(root / "pretrained", new_policy(TINY, seed=0, device=CPU), TINY)
    engine = EngineIdentity(name="Stockfish", sha256="0" * 64)
    work = Work(root / "calibrated", ())
    calibrate_ladder(read_settings("test"), engine=engine, engine_path=stockfish, num_processes=1, work=work)
    return Inputs(root / "boards", root / "pretrained", write_finetuned(root / "finetuned"), root / "calibrated")


def dataset_boards() -> list[chess.Board]:
    """Return the dataset's boards."""
    return some_boards(NUM_BOARDS, max_plies=60)


def write_book(path: Path, count: int) -> set[str]:
    """Write a book of the dataset's boards and `count` others, and return the keys of the others."""
    taken = {position_key(board) for board in dataset_boards()}
    others: dict[str, chess.Board] = {}
    for board in some_boards(3 * count + 100, seed=1, max_plies=24):
        if position_key(board) not in taken and not board.is_insufficient_material():
            others.setdefault(position_key(board), board)
    chosen = dict(list(others.items())[:count])
    assert len(chosen) == count
    path.write_text("".join(f"{board.epd()}\n" for board in (*dataset_boards(), *chosen.values())))
    return set(chosen)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Openings enough for any selection here: no engine need be asked for them."""
    path = tmp_path_factory.mktemp("book") / "book.epd"
    write_book(path, 300)
    return path


def settings_with(text: str = "", book: Path | None = None) -> Settings:
    """Return the small settings with changes."""
    settings = read_settings(MAIN)
    changed = json.loads(settings.model_dump_json())
    for line in text.strip().splitlines():
        section, _, key = line.partition("=")[0].strip().partition(".")
        changed[section][key] = json.loads(line.partition("=")[2])
    if book is not None:
        changed["evaluation"]["opening_book"] = str(book)
    return Settings.model_validate(changed)


Play = Callable[..., tuple[Any, Path]]


@pytest.fixture
def select(inputs: Inputs, stockfish: str, tmp_path: Path, book: Path) -> Play:
    """Return what runs the step and returns its report and its folder."""
    numbers = iter(range(100))

    def run(text: str = "", **changes: Any) -> tuple[Any, Path]:
        folder = tmp_path / f"selected-{next(numbers)}"
        folder.mkdir()
        work = Work(folder, ())
        given = {
            "boards": inputs.boards,
            "pretrained": inputs.pretrained,
            "finetuned": inputs.finetuned,
            "calibrated": inputs.calibrated,
            "previous": None,
            **changes,
        }
        select_champion(settings_with(text, book), **given, engine_path=stockfish, num_processes=1, device=CPU, work=work)
        work.write_history()
        return read_json(folder / REPORT), folder

    return run


@pytest.fixture
def strong(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes one player win all its games against other policies, whatever the weights are."""

    def make(strong: str) -> None:
        monkeypatch.setattr(
            network_policies,
            "BestMovePlayer",
            lambda policy, name: (BestMovePlayer if name == strong else Quitter)(policy, name),
        )

    return make


def games_by_event(folder: Path) -> dict[str, list[chess.pgn.Game]]:
    """Return the games of `games.pgn`, as python-chess reads them."""
    text = io.StringIO((folder / PGN).read_text())
    games: dict[str, list[chess.pgn.Game]] = {}
    while (game := chess.pgn.read_game(text)) is not None:
        assert not game.errors
        games.setdefault(game.headers["Event"], []).append(game)
    return games


def openings_of(games: Sequence[chess.pgn.Game]) -> list[str]:
    """Return the key of each game's opening."""
    return [position_key(game.board()) for game in games]


def games_with(player: str, games: Sequence[chess.pgn.Game]) -> list[chess.pgn.Game]:
    """Return the games that a player plays."""
    return [game for game in games if player in (game.headers["White"], game.headers["Black"])]


# A whole selection.


@dataclass(frozen=True)
class Selected:
    """A selection among three candidates, of which one plays well."""

    report: Any
    folder: Path
    openings: set[str]
    """Keys of the book's positions that are no board of the dataset: just as many as are needed."""
    settings: Settings


def num_ladder_openings(settings: Settings) -> int:
    """Return how many openings the candidate and the initial policy may take, together, to be placed."""
    ladder = settings.evaluation.ladder
    assert len(ladder.random_fractions) + len(ladder.nodes) == 3
    return 2 * ladder.num_probe_pairs + 2 * ladder.num_rung_pairs  # Of three rungs two are probed.


def num_pairs_needed(settings: Settings) -> int:
    """Return how many pairs all stages ask for; written out."""
    selection = settings.selection
    return (
        (3 + 2) * selection.num_screening_pairs
        + selection.num_confirmation_pairs
        + selection.num_sampled_pairs
        + 2 * num_ladder_openings(settings)  # Two policies are placed.
    )


@pytest.fixture(scope="module")
def selected(inputs: Inputs, stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Selected:
    folder = tmp_path_factory.mktemp("selected")
    settings = settings_with()
    # The rounds of the halving share openings: 3 candidates and then 2 play one round's.
    # So do the two policies that are placed on the ladder.
    needed = num_pairs_needed(settings) - 3 * settings.selection.num_screening_pairs - num_ladder_openings(settings)
    openings = write_book(folder.parent / "exact.epd", needed)
    settings = settings_with(book=folder.parent / "exact.epd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            network_policies,
            "BestMovePlayer",
            lambda policy, name: (BestMovePlayer if name == f"step {BEST}" else Quitter)(policy, name),
        )
        work = Work(folder, ())
        select_champion(
            settings,
            boards=inputs.boards,
            pretrained=inputs.pretrained,
            finetuned=inputs.finetuned,
            calibrated=inputs.calibrated,
            previous=None,
            engine_path=stockfish,
            num_processes=1,
            device=CPU,
            work=work,
        )
        work.write_history()
    return Selected(read_json(folder / REPORT), folder, openings, settings)


def test_no_opening_serves_two_stages_and_none_is_a_board_of_the_dataset(selected: Selected) -> None:
    games = games_by_event(selected.folder)
    assert list(games) == [SCREENING, CONFIRMATION, SAMPLED, LADDER]
    used = {stage: set(openings_of(of_stage)) for stage, of_stage in games.items()}
    assert sum(map(len, used.values())) == len(set().union(*used.values())), "no two stages share one"
    assert set().union(*used.values()) <= selected.openings
    assert not set().union(*used.values()) & {position_key(board) for board in dataset_boards()}
    placed = {player: games_with(player, games[LADDER]) for player in ("step 4", INITIAL)}
    for of_match in (games[CONFIRMATION], games[SAMPLED], *placed.values()):
        assert set(Counter(openings_of(of_match)).values()) == {2}, "both colours, once"
    # The book had no opening to spare; the ladder may have found its rungs with one probe of two.
    ladder = selected.settings.evaluation.ladder
    assert 0 <= len(selected.openings - set().union(*used.values())) <= ladder.num_probe_pairs


def test_all_candidates_of_a_round_play_the_same_openings_and_each_round_has_fresh_ones(selected: Selected) -> None:
    rounds: dict[int, dict[str, list[str]]] = {}
    games = iter(games_by_event(selected.folder)[SCREENING])
    num_games = 2 * selected.settings.selection.num_screening_pairs
    for entry in selected.report["screening"]:
        match = [next(games) for _ in range(num_games)]
        candidate = f"step {entry['candidate']}"
        assert all({game.headers["White"], game.headers["Black"]} == {candidate, "initial policy"} for game in match)
        rounds.setdefault(entry["round"], {})[candidate] = openings_of(match)
    assert next(games, None) is None
    assert [len(of_round) for of_round in rounds.values()] == [3, 2]
    for of_round in rounds.values():
        assert len({tuple(openings) for openings in of_round.values()}) == 1
    first, second = (set(next(iter(of_round.values()))) for of_round in rounds.values())
    assert len(first) == len(second) == selected.settings.selection.num_screening_pairs
    assert not first & second


def test_a_clearly_better_candidate_is_promoted_and_its_weights_are_the_champions(selected: Selected, inputs: Inputs) -> None:
    report = selected.report
    assert (report["verdict"], report["promoted"], report["replaces_previous"]) == (Verdict.BETTER, True, True)
    assert report["candidate_step"] == report["champion_step"] == BEST
    candidate = inputs.finetuned / CHECKPOINTS / "step-00000004"
    for name in (WEIGHTS, POLICY):
        assert sha256_file(selected.folder / CHAMPION / name) == sha256_file(candidate / name)
    assert {path.name for path in (selected.folder / CHAMPION).iterdir()} == {WEIGHTS, POLICY}
    assert report["candidate_weights"] == weights_hash(load_policy(selected.folder / CHAMPION, CPU)[0])
    assert report["initial_weights"] == weights_hash(load_policy(inputs.pretrained, CPU)[0])
    confirmed = report["confirmation_best_moves"]
    assert confirmed["num_pairs"] == confirmed["num_openings"] == selected.settings.selection.num_confirmation_pairs
    [claim] = report["claims"]
    assert (claim["name"], claim["is_shown"]) == (BETTER_THAN_INITIAL, True)
    # The claim is of the confirmation games alone, as played.
    assert claim["interval"] == {name: confirmed[name] for name in ("score", "low", "high", "num_pairs")}


def test_the_peak_is_a_whole_checkpoint_with_its_lower_bound(selected: Selected) -> None:
    assert selected.report["peak_step"] == BEST
    assert load_checkpoint(selected.folder / PEAK, CPU, NETWORK_FORMAT)[2].step == BEST
    lows = {entry["candidate"]: entry["so_far"]["low"] for entry in selected.report["screening"]}
    chosen = selected.report["candidate_step"]
    # What it was chosen by says too much of the chosen one.
    lows[chosen] = selected.report["claims"][0]["interval"]["low"]
    assert selected.report["peak_low"] == lows[BEST] == max(lows.values())


def test_the_report_holds_every_fact_that_others_read_and_nothing_else(selected: Selected) -> None:
    report = selected.report
    assert report.keys() == DecisionFacts.__annotations__.keys()
    assert report["heldout_regret_best"] == {str(step): {"mean": regret, "stderr": 0.01} for step, regret in REGRETS.items()}
    assert report["previous_champion"] is None
    num_sampled = selected.settings.selection.num_sampled_pairs
    assert report["confirmation_sampled_moves"]["num_pairs"] == num_sampled
    assert {claim["name"] for claim in report["beside"]} == {"best moves, adjudicated", "sampled moves at T = 1, as played"}


def test_the_metrics_are_those_of_the_report(selected: Selected) -> None:
    [record] = read_history(selected.folder)
    report, confirmed = selected.report, selected.report["confirmation_best_moves"]
    assert record.step == BEST
    expected = {
        "score_best": confirmed["score"],
        "score_best_low": confirmed["low"],
        "score_adjudicated": confirmed["adjudicated"]["score"],
        "score_sampled_high": report["confirmation_sampled_moves"]["high"],
        "verdict_elo": elo(confirmed["score"]),
        "rating": report["ladder"]["rating"],
        "rating_pretrained": report["ladder_initial"]["rating"],
        "ladder_gain_low": report["ladder_gain"]["played"]["low"],
        "ladder_gain_adjudicated": report["ladder_gain"]["adjudicated"]["value"],
        "heldout_regret": report["heldout_regret_best"][str(BEST)]["mean"],
    }
    assert {name: record.metrics[f"selection/{name}"] for name in expected} == expected


def test_candidate_and_start_meet_the_same_rungs_on_the_same_openings_and_their_difference_is_the_gain(selected: Selected) -> None:
    report, games = selected.report, games_by_event(selected.folder)[LADDER]
    candidate, initial = report["ladder"], report["ladder_initial"]
    num_games = 4 * selected.settings.evaluation.ladder.num_rung_pairs
    # The games that rate each of them are its last ones.
    sides = [openings_of(games_with(player, games)[-num_games:]) for player in ("step 4", INITIAL)]
    assert sides[0] == sides[1]
    assert [part["rung"] for part in candidate["games"]] == [part["rung"] for part in initial["games"]]
    gain = report["ladder_gain"]
    assert gain["played"]["value"] == pytest.approx(candidate["rating"] - initial["rating"])
    assert gain["played"]["low"] < gain["played"]["value"] < gain["played"]["high"]


def test_every_game_of_every_stage_is_kept_and_six_are_chosen_to_look_at(selected: Selected) -> None:
    report, games = selected.report, games_by_event(selected.folder)
    placed = [*report["ladder"].items(), *report["ladder_initial"].items()]
    assert {stage: len(of_stage) for stage, of_stage in games.items()} == {
        SCREENING: 2 * sum(len(entry["pair_scores"]) for entry in report["screening"]),
        CONFIRMATION: 2 * report["confirmation_best_moves"]["num_pairs"],
        SAMPLED: 2 * report["confirmation_sampled_moves"]["num_pairs"],
        LADDER: 2 * sum(part["num_pairs"] for name, parts in placed if name in ("probes", "games") for part in parts),
    }
    rounds = Counter((stage, game.headers["Round"]) for stage, of_stage in games.items() for game in of_stage)
    assert set(rounds.values()) == {1}
    chosen = [game for of_stage in games.values() for game in of_stage if "Chosen" in game.headers]
    assert len(chosen) == NUM_HIGHLIGHTS
    assert {game.headers["Event"] for game in chosen} == {CONFIRMATION}
    [data] = re.findall(r'id="data">(.*?)</script>', (selected.folder / GAMES_PAGE).read_text())
    assert {(game["round"], game["why"]) for game in json.loads(data)["games"]} == {
        (game.headers["Round"], game.headers["Chosen"]) for game in chosen
    }


# Played ahead.


def play_ahead_of(inputs: Inputs, settings: Settings, stockfish: str, folder: Path, previous: Path | None) -> list[Path]:
    """Play the screening, and all shares of the games after it, each in a task of its own."""
    given = {"boards": inputs.boards, "pretrained": inputs.pretrained, "finetuned": inputs.finetuned, "previous": previous}
    folders: list[Path] = []
    for name, share in (("screen", None), *((f"part-{part}", TaskPart(part=part, num_parts=2)) for part in range(2))):
        (folder / name).mkdir(parents=True)
        precompute_games(
            settings,
            **given,
            screened=folders[0] if folders else None,
            share=share,
            engine_path=stockfish,
            num_processes=1,
            device=CPU,
            work=Work(folder / name, ()),
        )
        folders.append(folder / name)
    return folders


def test_games_played_ahead_by_other_tasks_change_nothing_and_are_not_played_again(
    select: Play,
    inputs: Inputs,
    stockfish: str,
    tmp_path: Path,
    book: Path,
    other_champion: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "selection.num_confirmation_pairs = 4\nselection.num_sampled_pairs = 2\nevaluation.max_plies = 6"
    alone = select(text, previous=other_champion)
    ahead = play_ahead_of(inputs, settings_with(text, book), stockfish, tmp_path / "ahead", other_champion)
    real, played = selection_games.play_match, []

    def counted(first: Any, second: Any, openings: Sequence[str], **more: Any) -> MatchResult:
        played.append(len(openings))
        return real(first, second, openings, **more)

    monkeypatch.setattr(selection_games, "play_match", counted)
    together = select(text, previous=other_champion, precomputed=ahead)
    assert sum(played) == 0
    assert together[0] == alone[0]
    assert file_hashes(together[1]) == file_hashes(alone[1])
    # A share that was lost is made up for.
    lost = select(text, previous=other_champion, precomputed=ahead[:-1])
    assert sum(played) > 0
    assert file_hashes(lost[1]) == file_hashes(alone[1])


# Who is champion.


def test_a_candidate_that_is_no_better_leaves_the_initial_policy_champion(select: Play, inputs: Inputs, tmp_path: Path) -> None:
    # The checkpoint is the initial policy itself: every pair of games is even.
    same = write_finetuned(tmp_path / "same", steps=())
    state = TrainingState(step=2, optimiser={"state": {}, "param_groups": []}, controllers={}, facts={})
    save_checkpoint(same / CHECKPOINTS, load_policy(inputs.pretrained, CPU)[0], TINY, state, NETWORK_FORMAT)
    report, folder = select(ONE, finetuned=same)
    assert report["confirmation_best_moves"]["score"] == report["confirmation_best_moves"]["adjudicated"]["score"] == 0.5
    assert (report["verdict"], report["promoted"], report["replaces_previous"]) == (Verdict.NO_IMPROVEMENT, False, False)
    assert (report["candidate_step"], report["champion_step"]) == (2, PRETRAINED_STEP)
    assert (report["ladder_gain"]["played"]["value"], report["ladder_gain"]["adjudicated"]["value"]) == (0, 0)
    assert report["ladder_gain"]["finding"] == LadderFinding.NOT_SHOWN
    one, other = (
        [list(game.mainline_moves()) for game in games_with(player, games_by_event(folder)[LADDER])] for player in ("step 2", INITIAL)
    )
    assert one == other, "the rungs draw the same random moves against both"
    # One policy against itself: the likeliest moves make one game of an opening, whatever the colours; sampled ones make two.
    games = {stage: [list(game.mainline_moves()) for game in of_stage] for stage, of_stage in games_by_event(folder).items()}
    assert games[CONFIRMATION][::2] == games[CONFIRMATION][1::2]
    assert all(one != other for one, other in zip(games[SAMPLED][::2], games[SAMPLED][1::2], strict=True))
    for name in (WEIGHTS, POLICY):
        assert sha256_file(folder / CHAMPION / name) == sha256_file(inputs.pretrained / name)
    assert load_checkpoint(folder / PEAK, CPU, NETWORK_FORMAT)[2].step == 2


def phase_scores(endgame: float, others: float = 0.0, num_boards: int = 60) -> HeldoutScores:
    """Return held-out scores whose regret in the endgame is this, of boards that all have the same."""
    phases = np.repeat(np.arange(len(PHASES)), num_boards)
    regret = np.where(phases == len(PHASES) - 1, endgame, others)
    return HeldoutScores(regret_best=regret, regret_sampled=regret, expected_value=1 - regret, phases=phases)


def test_a_better_candidate_that_grew_worse_in_a_phase_is_not_promoted_and_the_phase_is_named(
    select: Play, strong: Callable[..., None], inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    strong("step 2")
    initial = weights_hash(load_policy(inputs.pretrained, CPU)[0])

    def scores(policy: Any, heldout: Any) -> HeldoutScores:
        assert len(heldout) == NUM_BOARDS
        return phase_scores(0.3) if weights_hash(policy) == initial else phase_scores(0.5, others=-0.1)

    monkeypatch.setattr(network_policies, "heldout_scores", scores)
    report, folder = select(ONE)
    assert report["claims"][0]["is_shown"]
    assert [(change["phase"], change["blocks"]) for change in report["phases"]] == [
        ("opening", False),
        ("middlegame", False),
        ("endgame", True),
    ]
    assert (report["verdict"], report["promoted"], report["replaces_previous"]) == (Verdict.WORSE_IN_A_PHASE, False, False)
    assert "Its held-out regret grew in the endgame." in report["sentence"]
    assert sha256_file(folder / CHAMPION / WEIGHTS) == sha256_file(inputs.pretrained / WEIGHTS)


def test_a_candidate_that_beats_its_start_and_is_worse_on_the_ladder_is_not_promoted_and_the_report_says_so(
    select: Play, strong: Callable[..., None], inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    strong("step 2")

    def difference(ladder: Any, first: Any, second: Any, *, adjudicated: bool) -> Estimate:
        assert [game.first for game in (first.games[0].result, second.games[0].result)] == ["step 2", INITIAL]
        return Estimate(value=200.0, low=100.0, high=300.0) if adjudicated else Estimate(value=-40.0, low=-80.0, high=-1.0)

    monkeypatch.setattr(selecting, "ladder_difference", difference)
    report, folder = select(ONE)
    assert report["claims"][0]["is_shown"]
    assert (report["verdict"], report["promoted"], report["replaces_previous"]) == (Verdict.WORSE_ON_LADDER, False, False)
    assert "but against other opponents it is weaker (-40 Elo [-80, -1] on the ladder)" in report["sentence"]
    assert sha256_file(folder / CHAMPION / WEIGHTS) == sha256_file(inputs.pretrained / WEIGHTS)


# The previous champion.


@pytest.fixture
def other_champion(tmp_path: Path) -> Path:
    """The policy of another run."""
    (tmp_path / "champion").mkdir()
    save_policy(tmp_path / "champion", new_policy(TINY, seed=77, device=CPU), TINY)
    return tmp_path / "champion"


def test_a_previous_champion_that_is_the_initial_policy_is_not_played(select: Play, strong: Callable[..., None], inputs: Inputs) -> None:
    strong("step 2")
    report, folder = select(ONE, previous=inputs.pretrained)
    assert report["previous_champion"] is None
    assert PREVIOUS not in games_by_event(folder)
    assert [claim["name"] for claim in report["claims"]] == [BETTER_THAN_INITIAL]
    assert report["promoted"]
    assert report["replaces_previous"], "to be better than the initial policy is to be better than it"


def test_a_previous_champion_that_was_beaten_gives_way_by_games_of_its_own_and_holm(
    select: Play, strong: Callable[..., None], other_champion: Path
) -> None:
    strong("step 2")
    report, folder = select(ONE, previous=other_champion)
    games = games_by_event(folder)
    assert list(games) == [CONFIRMATION, PREVIOUS, SAMPLED, LADDER]
    assert not set(openings_of(games[CONFIRMATION])) & set(openings_of(games[PREVIOUS]))
    assert {name for game in games[PREVIOUS] for name in (game.headers["White"], game.headers["Black"])} == {"step 2", PREVIOUS}
    assert [claim["name"] for claim in report["claims"]] == [BETTER_THAN_INITIAL, BETTER_THAN_PREVIOUS]
    assert [claim["adjusted_p"] for claim in report["claims"]] == holm([claim["p_value"] for claim in report["claims"]])
    assert (report["promoted"], report["replaces_previous"]) == (True, True)
    assert report["previous_champion"]["num_pairs"] == report["confirmation_best_moves"]["num_pairs"] == 8
    [record] = read_history(folder)
    assert record.metrics["selection/score_previous"] == report["claims"][1]["interval"]["score"]


# What there is to choose from.


@pytest.mark.parametrize(
    ("steps", "regrets", "count"),
    [((), REGRETS, 0), ((2, 4), {}, 2), ((2,), {2: math.nan}, 1), ((2,), {4: 0.1}, 1)],
    ids=["no checkpoint", "no regret", "no number", "another's regret"],
)
def test_where_nothing_was_measured_nothing_is_chosen_and_no_game_is_played(
    steps: Sequence[int], regrets: dict[int, float], count: int, select: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "SelectionGames", lambda *_, **__: pytest.fail("games were to be played"))
    finetuned = write_finetuned(tmp_path / "finetuned", steps=steps, regrets=regrets)
    with pytest.raises(SelectionError, match=rf"holds {count} checkpoints.*grpo\.num_steps"):
        select(finetuned=finetuned)


def test_a_damaged_checkpoint_is_named_and_not_played(select: Play, tmp_path: Path) -> None:
    damaged = write_finetuned(tmp_path / "damaged", steps=(2,), regrets={2: 0.1})
    weights = damaged / CHECKPOINTS / "step-00000002" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptError, match="step-00000002"):
        select(finetuned=damaged)


# Language models, of which these folders hold no weights: what one answers is decided by its seed.


def write_language_policy(folder: Path, seed: int) -> Path:
    """Write what makes a folder a language model's."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {"policy": {"kind": "language"}, "language": {}, "origin": {}, "action_table": ACTION_TABLE_HASH}
    write_json(folder / POLICY, described)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        (folder / name).write_text(f"{name} of {seed}")
    (folder / LANGUAGE_WEIGHTS).write_text(str(seed))
    return folder


@pytest.fixture
def speaking(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return a pretrained language model that is often illegal, and the output of a finetuning with two checkpoints: 2 is good, 4 bad."""
    finetuned = tmp_path / "finetuned"
    for step in (2, 4):
        folder = write_language_policy(finetuned / CHECKPOINTS / f"step-{step:08d}", step)
        (folder / "optimiser.safetensors").write_text("its state")
        write_manifest(folder, {"kind": "checkpoint", "step": step})
    rows = [{"step": step, "heldout/regret_best": 0.1 * step, "heldout/regret_best_stderr": 0.01} for step in (2, 4)]
    (finetuned / HISTORY).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def answer_of(seed: int) -> Answer:
        def answer(fen: str, number: float | None) -> str:
            board = chess.Board(fen)
            legal = sorted(move.uci() for move in board.legal_moves)
            if seed == 2:
                return naming(legal[0])
            drawn = made_up_number(board, chess.Move.null()) if number is None else number
            return naming([*legal, *["a1a1"] * 3 * len(legal)][int(drawn * 4 * len(legal))])

        return answer

    def opened(folder: Path, device: Any, rules: LanguageConfig | None) -> LanguageCompetitor:
        seed = int((folder / LANGUAGE_WEIGHTS).read_text())
        assert rules is not None, "the run's own rules decide"
        return LanguageCompetitor(ScriptedSpeaker(answer_of(seed), **dict(rules)), lambda: f"weights {seed}")

    monkeypatch.setattr(language_policies, "open_language_policy", opened)
    return {"pretrained": write_language_policy(tmp_path / "pretrained", 0), "finetuned": finetuned}


SPEAKING = "selection.num_candidates = 2\nselection.num_confirmation_pairs = 8\nevaluation.max_plies = 16\n"


def test_language_models_are_selected_by_the_same_games_and_the_champion_is_all_of_its_files_and_no_more(
    speaking: dict[str, Path], select: Play
) -> None:
    report, folder = select(SPEAKING, **speaking)
    assert (report["candidate_step"], report["promoted"], report["champion_step"]) == (2, True, 2), report["sentence"]
    assert (report["initial_weights"], report["candidate_weights"]) == ("weights 0", "weights 2")
    confirmed = report["confirmation_best_moves"]
    answers = confirmed["answers"]
    assert answers["first"]["illegal"] == answers["first"]["forfeits"] == 0
    assert answers["second"]["illegal"] == answers["second"]["asked_again"] + answers["second"]["forfeits"] > 0
    assert confirmed["ends"]["no legal move named"] == answers["second"]["forfeits"] > 0
    assert sum(change["num_boards"] for change in report["phases"]) == NUM_BOARDS - 1, "one phase has one board, and says nothing"
    champion = speaking["finetuned"] / CHECKPOINTS / "step-00000002"
    names = ["config.json", "generation_config.json", LANGUAGE_WEIGHTS, POLICY, "tokenizer.json"]
    assert sorted(path.name for path in (folder / CHAMPION).iterdir()) == names
    assert all((folder / CHAMPION / name).read_bytes() == (champion / name).read_bytes() for name in names)
    assert (folder / PEAK / "optimiser.safetensors").is_file(), "the peak is a whole checkpoint"
    assert not (folder / DECISIONS).exists(), "there are no probabilities to tell"
    forfeited = [game for game in games_by_event(folder)[CONFIRMATION] if game.headers["Termination"] == "no legal move named"]
    assert len(forfeited) == answers["second"]["forfeits"]
