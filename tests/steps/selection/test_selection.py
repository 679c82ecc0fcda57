"""Screen, confirm, select: every stage on openings of its own, a champion only where one was shown, a verdict in any case."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from doubles import CPU, saved_policy
from made_documents import made_reports, made_results
from made_language import made_up_rows
from made_selection import (
    LAST,
    NUM_BOARDS,
    ONE,
    REGRETS,
    Selection,
    Selections,
    dataset_boards,
    make_strong,
    openings_of,
    settings,
    step,
    write_checkpoint,
    write_finetuned,
)
from made_selections import gain
from presets import tiny_settings

from grpo.base import seeding
from grpo.base.documents import read_document
from grpo.base.files import read_json, sha256_file
from grpo.base.seeding import named_seed
from grpo.board.encoding import position_key
from grpo.board.phases import PHASES
from grpo.dataset.table import Split, board_arrays, board_table
from grpo.match.regret import HeldoutScores, heldout_metrics
from grpo.match.selection import Selection as SelectionReport
from grpo.metrics.shared import PRETRAINED_STEP, interval_names
from grpo.policy.checkpoints import load_checkpoint
from grpo.policy.files import FACTS, WEIGHTS, checkpoint_name
from grpo.policy.policy import NetworkPolicy, weights_hash
from grpo.statistics.intervals import Estimate, holm, regret_interval
from grpo.statistics.verdict import BETTER_THAN_INITIAL, BETTER_THAN_PREVIOUS, Verdict
from steps import screen, select
from steps.cards.page import Seen
from steps.common.measure import CONFIRMATION, INITIAL, LADDER, PREVIOUS, SAMPLED, SCREENING
from steps.common.policies import network as network_policies
from steps.common.policies.open import open_policy
from steps.names import CHAMPION, CHECKPOINTS, DECISIONS, HISTORY, PEAK, REPORT
from steps.pages.templates import page
from steps.run.work import read_history

BEST = 4
"""The step that is made to play well."""


@pytest.fixture
def selections(inputs: dict[str, Path], stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Selections:
    return Selections(tmp_path_factory.mktemp("selections"), inputs, stockfish)


# A whole selection among three candidates, of which one plays well.


@pytest.fixture(scope="module")
def selected(inputs: dict[str, Path], stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Selection:
    with pytest.MonkeyPatch.context() as patch:
        made = make_strong(patch, f"step {BEST}")
        patch.setattr(seeding, "named_seed", lambda *name: DRAWN.append(name) or named_seed(*name))
        sampling, at = network_policies.SamplingPlayer, SAMPLED_AT
        patch.setattr(network_policies, "SamplingPlayer", lambda *who, **how: at.append(how["temperature"]) or sampling(*who, **how))
        annotate, write = select.annotate, network_policies.NetworkCompetitor.write_decisions

        def annotated(match: Any, policies: Any, *more: Any, **how: Any) -> Any:
            COMPARED.append([policy.__self__.weights for policy in policies])
            return annotate(match, policies, *more, **how)

        def written(policy: Any, *more: Any, before: Any) -> None:
            COMPARED.append([policy.weights, before.weights])
            write(policy, *more, before=before)

        patch.setattr(select, "annotate", annotated)
        patch.setattr(network_policies.NetworkCompetitor, "write_decisions", written)
        found = Selections(tmp_path_factory.mktemp("selected"), inputs, stockfish).run({"seed": 5}, num_parts=2)
    PLAYERS.update(made)
    return found


DRAWN: list[tuple[Any, ...]] = []
"""Root and name of each stream of that selection."""
SAMPLED_AT: list[float] = []
"""Temperatures of its players that sample."""
PLAYERS = set[tuple[str, str]]()
"""Names of its players of best moves, each with the hash of its weights."""
COMPARED: list[list[str]] = []
"""Hashes of the weights of the policies whose probabilities, and whose decisions, stand side by side."""


@pytest.mark.usefixtures("selected")
def test_each_stage_round_player_and_rung_has_a_stream_of_its_own_from_the_seed_and_sampled_moves_are_at_temperature_1() -> None:
    streams = [name for name in DRAWN if name[1] != "game"]
    assert {root for root, *_ in streams} == {5}
    openings = [name[2:] for name in streams if name[1] == "openings"]
    assert len(openings) == len(set(openings)) == 2 + 1 + 1 + 1, "two rounds, confirmation, sampled moves, the ladder"
    assert Counter(name[1:] for name in streams if name[1] == SAMPLED) == {(SAMPLED, "candidate"): 2, (SAMPLED, "initial"): 2}, "each part"
    assert {name[-1] for name in streams if name[1] == "placement"} >= {"random"}
    assert SAMPLED_AT == [1.0] * 4


def weights_in(folder: Path) -> str:
    return weights_hash(NetworkPolicy.load(folder, CPU))


@pytest.mark.usefixtures("selected")
def test_whoever_plays_under_a_name_has_the_weights_of_that_name(inputs: dict[str, Path]) -> None:
    checkpoints = {f"step {step}": inputs["finetune"] / CHECKPOINTS / checkpoint_name(step) for step in REGRETS}
    assert {(name, weights_in(folder)) for name, folder in {**checkpoints, INITIAL: inputs["pretrain"]}.items()} == PLAYERS
    assert [[weights_in(checkpoints[f"step {BEST}"]), weights_in(inputs["pretrain"])]] * 2 == COMPARED


def test_what_is_logged_is_what_the_report_says(selected: Selection) -> None:
    report, [record] = selected.report, read_history(selected.selected)
    told = {
        "score_best": report["confirmation_best_moves"]["score"],
        "score_sampled": report["confirmation_sampled_moves"]["score"],
        "rating": report["ladder"]["rating"],
        "rating_pretrained": report["ladder_initial"]["rating"],
        "ladder_gain": report["ladder_gain"]["played"],
    }
    assert report["ladder"]["rating"]["value"] > report["ladder_initial"]["rating"]["value"]
    for name, estimate in told.items():
        found = [record.metrics[metric] for metric in interval_names(f"selection/{name}")]
        assert found == [estimate[bound] for bound in ("value", "low", "high")], name


def test_scores_as_played_decide_and_adjudicated_ones_stand_beside() -> None:
    def match(played: float, adjudicated: float) -> Any:
        scores = {False: [played] * 20, True: [adjudicated] * 20}
        return SimpleNamespace(pair_scores=lambda *, adjudicated=False: scores[adjudicated])

    matches = {CONFIRMATION: match(0.75, 0.25), SAMPLED: match(0.5, 1.0), PREVIOUS: match(1.0, 0.0)}
    decision = select._decide(BEST, matches, gain(0.0), ())
    assert [claim.interval.value for claim in decision.claims] == [0.75, 1.0]
    assert {claim.name: claim.interval.value for claim in decision.beside} == {
        "best moves, adjudicated": 0.25,
        "sampled moves at T = 1, as played": 0.5,
    }


def test_a_policy_is_judged_by_the_deep_values_of_the_heldout_boards(inputs: dict[str, Path], tmp_path: Path) -> None:
    rows = made_up_rows(dataset_boards(), split=Split.HELDOUT)
    table = board_table([row | {"strong_values": [1 - value for value in row["values"]]} for row in rows])
    policy = NetworkPolicy.load(inputs["pretrain"], CPU)
    deep, shallow = (heldout_metrics(policy, board_arrays(table, split=Split.HELDOUT, strong=strong)) for strong in (True, False))
    competitor = open_policy(inputs["pretrain"], CPU)
    assert competitor.heldout(table) == deep
    assert deep["heldout/regret_best"] != shallow["heldout/regret_best"]
    assert competitor.scores(table).regret_best.mean() == pytest.approx(deep["heldout/regret_best"])
    competitor.write_decisions(tmp_path, table)
    [worst, *_] = read_json(tmp_path / DECISIONS)["worst"]
    assert worst["regret"] == pytest.approx(competitor.scores(table).regret_best.max())


def test_no_opening_serves_two_stages_and_none_is_a_board_of_the_dataset(selected: Selection) -> None:
    games = selected.games()
    assert list(games) == [SCREENING, CONFIRMATION, SAMPLED, LADDER]
    used = {stage: set(openings_of(of_stage)) for stage, of_stage in games.items()}
    together = set().union(*used.values())
    assert sum(map(len, used.values())) == len(together), "no two stages share one"
    assert not together & {position_key(board) for board in dataset_boards()}
    for of_match in (games[CONFIRMATION], games[SAMPLED]):
        assert set(Counter(openings_of(of_match)).values()) == {2}, "both colors, once"


@pytest.mark.parametrize("is_previous_played", [False, True])
def test_each_stage_takes_what_the_stages_before_it_and_the_dataset_have_left(is_previous_played: bool) -> None:
    class FirstOnes:
        """An arena that gives the first openings that are not used."""

        config = tiny_settings().evaluation

        def openings(self, count: int, exclude: set[str], *stream: str) -> list[str]:
            streams.append(stream)
            drawn = [opening for opening in map(str, range(10_000)) if opening not in exclude][:count]
            exclude.update(drawn)
            return drawn

    streams: list[tuple[str, ...]] = []
    work, arena, used = SimpleNamespace(settings=tiny_settings()), FirstOnes(), {"0", "2"}
    found = screen._openings(cast("Any", work), cast("Any", arena), used, is_previous_played=is_previous_played)
    assert [*found] == [CONFIRMATION, *([PREVIOUS] if is_previous_played else []), SAMPLED, LADDER]
    drawn = [opening for openings in found.values() for opening in openings]
    assert len(drawn) + 2 == len({*drawn, "0", "2"}) == len(used)
    assert len(set(streams)) == len(found)


def test_a_clearly_better_candidate_is_promoted_and_its_weights_are_the_champions(selected: Selection, inputs: dict[str, Path]) -> None:
    report = selected.report
    assert decision_of(selected) == (Verdict.BETTER, True, True)
    assert report["candidate_step"] == report["champion_step"] == BEST
    candidate = inputs["finetune"] / CHECKPOINTS / "step-00000004"
    assert {path.name for path in (selected.selected / CHAMPION).iterdir()} == {WEIGHTS, FACTS}
    assert all(sha256_file(selected.selected / CHAMPION / name) == sha256_file(candidate / name) for name in (WEIGHTS, FACTS))
    assert report["candidate_weights"] == weights_hash(NetworkPolicy.load(selected.selected / CHAMPION, CPU))
    assert report["initial_weights"] == weights_hash(NetworkPolicy.load(inputs["pretrain"], CPU))
    confirmed, [claim] = report["confirmation_best_moves"], report["claims"]
    assert (claim["name"], claim["is_shown"]) == (BETTER_THAN_INITIAL, True)
    # The claim is of the confirmation games alone, as played.
    assert claim["interval"] == confirmed["score"]
    # The peak is a whole checkpoint, with its lower bound.
    assert load_checkpoint(selected.selected / PEAK, CPU, NetworkPolicy)[1].step == report["peak_step"] == BEST
    # The games that chose it say too much of it.
    assert report["peak"] == claim["interval"]


# Shares.


@pytest.fixture(scope="module")
def other_champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("other") / "champion", 77)


SHORT = {"selection": {"num_candidates": 1, "num_confirmation_pairs": 5, "num_sampled_pairs": 2}}


def test_decision_and_games_are_the_same_however_many_tasks_play_them_and_where_some_are_missing_nothing_is_judged(
    selections: Selections, inputs: dict[str, Path], other_champion: Path, tmp_path: Path
) -> None:
    alone, shared = (selections.run(SHORT, num_parts=count, champion=other_champion) for count in (1, 3))
    assert alone.hashes() == shared.hashes()
    assert [len(read_json(part / "games.json")[CONFIRMATION]) for part in shared.parts] == [4, 4, 2]
    taken, given = {**inputs, "screen": shared.screened}, settings(inputs, SHORT)
    with pytest.raises(AssertionError, match="confirmation: pairs are missing"):
        step(select, tmp_path / "lost", given, taken, parts=[shared.parts[0], shared.parts[2]])


# Who is champion: no better, worse in a phase, worse on the ladder, better than its start alone, better than the champion too.


def decision_of(found: Selection) -> tuple[Any, Any, Any]:
    return tuple(found.report[name] for name in ("verdict", "promoted", "replaces_previous"))


def assert_kept(found: Selection, verdict: Verdict, inputs: dict[str, Path]) -> None:
    assert decision_of(found) == (verdict, False, False)
    assert found.report["champion_step"] == PRETRAINED_STEP
    for name in (WEIGHTS, FACTS):
        assert sha256_file(found.selected / CHAMPION / name) == sha256_file(inputs["pretrain"] / name)


def test_a_candidate_that_is_no_better_leaves_the_initial_policy_champion(
    selections: Selections, inputs: dict[str, Path], tmp_path: Path
) -> None:
    # The checkpoint is the initial policy itself: every pair of games is even.
    same = write_finetuned(tmp_path / "same", steps=())
    write_checkpoint(same, 2, NetworkPolicy.load(inputs["pretrain"], CPU))
    found = selections.run(ONE, finetune=same, champion=inputs["pretrain"])
    report = found.report
    games = {stage: [list(game.mainline_moves()) for game in of_stage] for stage, of_stage in found.games().items()}
    assert_kept(found, Verdict.NO_IMPROVEMENT, inputs)
    confirmed, gain = report["confirmation_best_moves"], report["ladder_gain"]
    assert confirmed["score"]["value"] == confirmed["adjudicated"]["value"] == 0.5
    assert gain["played"]["low"] < gain["played"]["value"] == 0 < gain["played"]["high"], "no difference is shown"
    assert report["previous_weights"] is report["previous_champion"] is None, "the start is no other champion"
    assert gain["num_pairs"] == gain["num_planned"]
    # One policy against itself: the likeliest moves make one game of an opening, whatever the colors; sampled ones make two.
    assert games[CONFIRMATION][::2] == games[CONFIRMATION][1::2]
    assert all(one != other for one, other in zip(games[SAMPLED][::2], games[SAMPLED][1::2], strict=True))
    assert load_checkpoint(found.selected / PEAK, CPU, NetworkPolicy)[1].step == report["candidate_step"] == 2


def test_a_better_candidate_that_grew_worse_in_a_phase_is_not_promoted_and_the_phase_is_named(
    selections: Selections, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_strong(monkeypatch, f"step {LAST}")
    initial = weights_hash(NetworkPolicy.load(inputs["pretrain"], CPU))

    def scores(policy: Any, heldout: Any) -> HeldoutScores:
        assert len(heldout) == NUM_BOARDS
        phases = np.repeat(np.arange(len(PHASES)), 60)
        in_endgame, elsewhere = (0.3, 0.0) if weights_hash(policy) == initial else (0.5, 0.005)  # Within the tolerance.
        regret = np.where(phases == PHASES.index("endgame"), in_endgame, elsewhere)
        return HeldoutScores(regret_best=regret, regret_sampled=-regret, expected_value=1 - regret, phases=phases)

    monkeypatch.setattr(network_policies, "heldout_scores", scores)
    found = selections.run(ONE)
    report = found.report
    assert report["claims"][0]["is_shown"]
    assert {change["phase"]: change["blocks"] for change in report["phases"]} == {"opening": False, "middlegame": False, "endgame": True}
    assert "endgame" in report["sentence"]
    assert_kept(found, Verdict.WORSE_IN_A_PHASE, inputs)


def test_a_candidate_that_beats_its_start_and_is_worse_on_the_ladder_is_not_promoted_and_the_report_says_so(
    selections: Selections, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_strong(monkeypatch, f"step {LAST}")

    def difference(ladder: Any, first: Any, second: Any, *, adjudicated: bool) -> Estimate:
        assert [place.games[0].result.first for place in (first, second)] == [f"step {LAST}", INITIAL]
        return Estimate(value=200.0, low=100.0, high=300.0) if adjudicated else Estimate(value=-40.0, low=-80.0, high=-1.0)

    monkeypatch.setattr(select, "ladder_difference", difference)
    found = selections.run(ONE)
    report = found.report
    assert report["claims"][0]["is_shown"]
    assert "-40 Elo [-80, -1] on the ladder" in report["sentence"]
    assert report["ladder_gain"]["adjudicated"]["value"] == 200
    assert_kept(found, Verdict.WORSE_ON_LADDER, inputs)


@pytest.mark.parametrize("is_beaten", [False, True])
def test_a_previous_champion_gives_way_only_where_games_of_its_own_and_holm_show_it_beaten(
    is_beaten: bool, selections: Selections, other_champion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_strong(monkeypatch, f"step {LAST}", *([] if is_beaten else [PREVIOUS]))
    found = selections.run(ONE, champion=other_champion)
    games, report = found.games(), found.report
    assert list(games) == [CONFIRMATION, PREVIOUS, SAMPLED, LADDER]
    assert not set(openings_of(games[CONFIRMATION])) & set(openings_of(games[PREVIOUS]))
    assert {name for game in games[PREVIOUS] for name in (game.headers["White"], game.headers["Black"])} == {f"step {LAST}", PREVIOUS}
    assert dict(made)[PREVIOUS] == weights_in(other_champion)
    assert [(claim["name"], claim["is_shown"]) for claim in report["claims"]] == [
        (BETTER_THAN_INITIAL, True),
        (BETTER_THAN_PREVIOUS, is_beaten),
    ]
    assert [claim["adjusted_p"] for claim in report["claims"]] == holm([claim["p_value"] for claim in report["claims"]])
    assert (report["promoted"], report["replaces_previous"]) == (True, is_beaten)
    assert report["previous_weights"] == weights_hash(NetworkPolicy.load(other_champion, CPU))


# A run that collapsed.


def test_a_checkpoint_is_a_candidate_where_it_is_there_and_all_that_was_measured_of_it_is_a_number(tmp_path: Path) -> None:
    measured = {"heldout/regret_best": 0.1, "heldout/regret_best_stderr": 0.01, "heldout/regret_sampled": 0.2}
    rows = [{**measured, "step": 2}, {**measured, "step": 4, "heldout/regret_sampled": math.nan}, {**measured, "step": 6}]
    (tmp_path / HISTORY).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert screen._regrets(tmp_path, {2, 4}) == {2: regret_interval(0.1, 0.01)}


@pytest.mark.parametrize(
    ("steps", "regrets"), [((), REGRETS), ((4,), {4: math.nan, 6: 0.1})], ids=["no checkpoint", "no regret of its own"]
)
def test_where_no_checkpoint_can_play_there_is_a_verdict_without_a_game_and_the_start_is_champion_and_peak(
    steps: Sequence[int], regrets: dict[int, float], selections: Selections, inputs: dict[str, Path], tmp_path: Path
) -> None:
    finetuned = write_finetuned(tmp_path / "finetuned", steps=steps, regrets=regrets)
    selections.engine = "no engine"
    found = selections.run(finetune=finetuned, champion=inputs["pretrain"])
    decision = read_document(found.selected / REPORT, SelectionReport)
    assert (decision.candidate_step, decision.peak_step) == (None, PRETRAINED_STEP)
    assert_kept(found, Verdict.NO_IMPROVEMENT, inputs)
    assert sha256_file(found.selected / PEAK / WEIGHTS) == sha256_file(inputs["pretrain"] / WEIGHTS)
    assert select.card(Seen({}, folder=found.selected))
    results = made_results(tmp_path / "run", made_reports() | {"select": found.report})
    for name in ("report", "description", "version"):
        text = page(name, results=results, role="champion")
        assert decision.sentence in " ".join(text.split()), name
        assert "None" not in text, name
    assert results.decision.gains == {}
