"""Measure the pretrained policy's strength before GRPO changes it."""

from pathlib import Path
from typing import Any, Final

import torch

from grpo.base.files import write_json
from grpo.base.seeding import numpy_stream
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.metrics.table import Record
from grpo.play.ladder import Rung
from grpo.play.openings import make_openings
from grpo.settings.tree import Settings
from steps.bodies.measure import match_facts, num_ladder_openings, place_players, placement_facts, play_adjudicated, read_ladder
from steps.policies.open import open_policy
from steps.step_io.dataset import position_keys, read_boards
from steps.step_io.names import DECISIONS, REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="baseline",
    body=__name__,
    reads="baseline",
    inputs=("boards", "pretrained", "ladder", "engine", "device", "opening book"),
    shown=("baseline/score_random", "baseline/score_engine", "baseline/rating", "heldout/regret_best"),
    published=(REPORT, DECISIONS),
)


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
    policy, table = open_policy(pretrained, device, rules=settings.language), read_boards(boards)
    heldout = policy.heldout(table)
    work.record(Record(0, heldout))
    policy.write_decisions(work.folder, table)
    config, ladder = settings.evaluation, read_ladder(calibrated)
    player = policy.best_player("pretrained", seed=settings.seed, stream=("baseline", "asked again"))
    opponents = {"random": Rung(nodes=config.opponent_nodes, random_share=1), "engine": Rung(nodes=config.opponent_nodes, random_share=0)}
    used = position_keys(boards)
    total = 2 * (config.num_baseline_pairs * len(opponents) + num_ladder_openings(ladder, config))
    matches: dict[str, Any] = {}
    num_played = 0

    def on_games_done(done: int) -> None:
        work.progress(num_played + done, total, "games at most")

    with EnginePool(engine_path, num_processes=num_processes, options={"Hash": PLAYING_HASH_MIB}) as pool:
        rng = numpy_stream(settings.seed, "openings", "baseline")
        openings = make_openings(config, count=config.num_baseline_pairs, rng=rng, pool=pool, exclude=used)
        for kind, rung in opponents.items():  # The same openings for both: these scores are never added up.
            opponent = rung.player(pool, numpy_stream(settings.seed, "baseline", kind))
            result = play_adjudicated(player, opponent, openings, config=config, pool=pool, on_games_done=on_games_done)
            num_played += len(result.games)
            matches[rung.name] = match_facts(result)
            interval, name = result.interval(), f"baseline/score_{kind}"
            work.record(Record(0, {name: interval.score, f"{name}_low": interval.low, f"{name}_high": interval.high}))
        [placement] = place_players(
            [player],
            ladder,
            config=config,
            seed=settings.seed,
            purpose="pretrained",
            pool=pool,
            exclude=used,
            on_games_done=on_games_done,
        )
    rating = {"baseline/rating": placement.rating, "baseline/rating_low": placement.low, "baseline/rating_high": placement.high}
    work.record(Record(0, rating))
    write_json(work.folder / REPORT, {"heldout": heldout, "matches": matches, "ladder": placement_facts(placement, ladder)})
