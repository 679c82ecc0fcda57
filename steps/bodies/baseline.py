"""Know the pretrained policy's strength before GRPO touches it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo.base.files import write_json
from grpo.base.seeding import numpy_stream
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.metrics.table import Record
from grpo.play.adjudication import adjudicate
from grpo.play.ladder import Ladder, LadderPlacement, Rung, num_openings_to_place, place_on_ladder
from grpo.play.matches import MatchResult, play_match
from grpo.play.openings import make_openings
from grpo.play.players import Player
from grpo.settings.tree import EvaluationConfig, Settings
from steps.bodies.build_boards import board_keys, read_boards
from steps.bodies.calibrate import read_ladder
from steps.policies.open import open_policy
from steps.step_io.names import REPORT
from steps.step_io.work import Work


def play_baseline(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    calibrated: Path,
    engine_path: str,
    num_processes: int,
    device: torch.device,
    work: Work,
) -> None:
    """Write held-out regret, place on the ladder, and scores against a random mover and Stockfish, as the policy stands before GRPO."""
    policy, judged = open_policy(pretrained, device, rules=settings.language), read_boards(boards)
    heldout = policy.heldout(judged)
    work.record(Record(0, heldout))
    policy.write_decisions(work.folder, judged)
    config, ladder = settings.evaluation, read_ladder(calibrated)
    player = policy.best_player("pretrained", seed=settings.seed, stream=("baseline", "asked again"))
    opponents = {"random": Rung(nodes=config.opponent_nodes, random_share=1), "engine": Rung(nodes=config.opponent_nodes, random_share=0)}
    used = board_keys(boards)
    total = 2 * (config.num_baseline_pairs * len(opponents) + _num_openings(ladder, config))
    matches: dict[str, Any] = {}
    num_played = 0

    def on_games_done(done: int) -> None:
        work.progress(num_played + done, total, "games")

    with EnginePool(engine_path, num_processes=num_processes, options={"Hash": PLAYING_HASH_MIB}) as pool:
        rng = numpy_stream(settings.seed, "openings", "baseline")
        openings = make_openings(config, count=config.num_baseline_pairs, rng=rng, pool=pool, exclude=used)
        for kind, opponent in opponents.items():  # The same openings for both: these scores are never added up.
            rival = opponent.player(pool, numpy_stream(settings.seed, "baseline", kind))
            result = _played(player, rival, openings, config=config, pool=pool, on_games_done=on_games_done)
            num_played += len(result.games)
            matches[opponent.name] = match_facts(result)
            interval, name = result.interval(), f"baseline/score_{kind}"
            work.record(Record(0, {name: interval.score, f"{name}_low": interval.low, f"{name}_high": interval.high}))
        placement = place_player(
            player,
            ladder,
            config=config,
            seed=settings.seed,
            purpose="pretrained",
            pool=pool,
            exclude=used,
            on_games_done=on_games_done,
        )
    work.progress(total, total, "games")  # Fewer were played, if the rungs were found at once.
    rating = {"baseline/rating": placement.rating, "baseline/rating_low": placement.low, "baseline/rating_high": placement.high}
    work.record(Record(0, rating))
    write_json(work.folder / REPORT, {"heldout": heldout, "matches": matches, "ladder": placement_facts(placement, ladder)})


def place_player(
    player: Player,
    ladder: Ladder,
    *,
    config: EvaluationConfig,
    seed: int,
    purpose: str,
    pool: EnginePool,
    exclude: set[str],
    on_games_done: Callable[[int], None],
) -> LadderPlacement:
    """Return where a player stands on the ladder, from games on openings of its own.

    Args:
        player: whoever is rated.
        ladder: from `read_ladder`; of the engine that `pool` runs, with `PLAYING_HASH_MIB`.
        config: how many pairs, and by which rules.
        seed: root of the random streams.
        purpose: names the streams of openings and opponents: one for each player who is placed.
        pool: engines for opponents, openings and adjudication.
        exclude: `position_key` of positions that may not be openings; those used are added.
        on_games_done: told now and then how many games are over.
    """
    rng = numpy_stream(seed, "openings", "placement", purpose)
    openings = make_openings(config, count=_num_openings(ladder, config), rng=rng, pool=pool, exclude=exclude)
    num_matches, num_played = 0, 0

    def play(rung: Rung, part: Sequence[str]) -> MatchResult:
        nonlocal num_matches, num_played
        before = num_played
        rival = rung.player(pool, numpy_stream(seed, "placement", purpose, num_matches))
        result = _played(player, rival, part, config=config, pool=pool, on_games_done=lambda done: on_games_done(before + done))
        num_matches, num_played = num_matches + 1, num_played + len(result.games)
        return result

    return place_on_ladder(
        play, ladder, openings, num_probe_pairs=config.ladder.num_probe_pairs, num_rung_pairs=config.ladder.num_rung_pairs
    )


def placement_facts(placement: LadderPlacement, ladder: Ladder) -> dict[str, Any]:
    """Return a place on the ladder as plain data, with the facts of the matches that it comes from."""
    parts = {
        name: [
            {"rung": ladder.rungs[part.rung].name, "rung_rating": float(ladder.ratings[part.rung]), **match_facts(part.result)}
            for part in games
        ]
        for name, games in (("games", placement.games), ("probes", placement.probes))
    }
    return {
        "rating": placement.rating,
        "low": placement.low,
        "high": placement.high,
        "low_of_all": placement.low_of_all,
        "high_of_all": placement.high_of_all,
        "reach": placement.reach.value,
        "text": placement.text(ladder),
        **parts,
    }


def match_facts(result: MatchResult) -> dict[str, Any]:
    """Return a match as plain data: score with interval, as played and as adjudicated, how games ended, and answers without a move."""
    wins, draws, losses = result.wins_draws_losses()
    facts = {
        **asdict(result.interval()),
        "text": str(result.interval()),
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "pentanomial": _pentanomial(result.pair_scores()),
        "ends": result.ends(),
        "num_openings": result.num_openings,
        **answer_facts(result),
    }
    if result.adjudication is None:
        return facts
    interval = result.interval(adjudicated=True)
    adjudicated = {**asdict(interval), "text": str(interval), "pentanomial": _pentanomial(result.pair_scores(adjudicated=True))}
    return {**facts, "adjudicated": adjudicated | asdict(result.adjudication)}


def answer_facts(result: MatchResult) -> dict[str, dict[str, dict[str, int]]]:
    """Return, as plain data, what the answers were like of the players who may fail to name a legal move; nothing where none is."""
    answers = {player: counts.facts() for player, counts in result.replies().items()}
    return {"answers": answers} if answers else {}


def _pentanomial(pair_scores: Sequence[float]) -> list[int]:
    """Return how many pairs scored 0, 1/4, 1/2, 3/4 and 1: lost, lost and drawn, even, won and drawn, won."""
    counts = Counter(pair_scores)
    return [counts[quarter / 4] for quarter in range(5)]


def _num_openings(ladder: Ladder, config: EvaluationConfig) -> int:
    return num_openings_to_place(
        len(ladder.rungs), num_probe_pairs=config.ladder.num_probe_pairs, num_rung_pairs=config.ladder.num_rung_pairs
    )


def _played(
    player: Player,
    rival: Player,
    openings: Sequence[str],
    *,
    config: EvaluationConfig,
    pool: EnginePool,
    on_games_done: Callable[[int], None],
) -> MatchResult:
    result = play_match(player, rival, openings, max_plies=config.max_plies, on_games_done=on_games_done)
    return adjudicate(result, pool, depth=config.adjudication_depth, centipawns=config.adjudication_centipawns)
