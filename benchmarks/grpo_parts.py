"""What each part of GRPO is worth against others, on the ladder's rungs.

python benchmarks/grpo_parts.py --boards DIR --pretrained DIR --out DIR "default:" "no KL:grpo.kl_coefficient=0"

Each part is a name and the settings in which it differs from the preset. Fine-tunes the same pretrained policy with each (once: a policy
that is there is kept), and plays the last checkpoint and the start against the same rungs on the same openings, as played and adjudicated.
Gains are in Elo, paired by opening, against the rungs' ratings as given. Choose parts on one seed, claim strength on others.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from grpo.base.seeding import numpy_stream
from grpo.engine.identity import identify
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.learning.checkpoints import load_policy
from grpo.play.ladder import Rung
from grpo.play.matches import End, MatchResult
from grpo.play.openings import make_openings
from grpo.play.players import BestMovePlayer
from grpo.settings.tree import Settings, read_settings
from grpo.statistics.intervals import Z95, Estimate, Unit
from grpo.statistics.ratings import rating_difference
from steps.bodies.finetune import finetune_policy
from steps.bodies.measure import play_adjudicated
from steps.runtime.machine import Machine
from steps.step_io.dataset import position_keys
from steps.step_io.names import CHECKPOINTS
from steps.step_io.work import Work

_CPU: Final = torch.device("cpu")


def main() -> None:
    """Print a row of the table for each part, as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boards", type=Path, required=True, help="output of join_boards")
    parser.add_argument("--pretrained", type=Path, required=True, help="output of pretrain")
    parser.add_argument("--out", type=Path, required=True, help="where fine-tuned policies are kept, a folder for each part")
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--rungs", default="0.15:1278,0.07:1390", help="fraction of random moves of Stockfish at 1 node, and its Elo")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("parts", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    table = Games(given.preset, given.seed, given.boards, given.pairs, given.rungs.split(","))
    table.row("start", given.pretrained, 0.0)
    for part in given.parts:
        name, _, keys = part.partition(":")
        settings = with_keys(given.preset, given.seed, keys)
        started = time.monotonic()
        folder = finetuned(settings, given.out / name.replace(" ", "_"), given)
        table.row(name, folder, time.monotonic() - started)


def with_keys(preset: str, seed: int, keys: str) -> Settings:
    """Return the preset with a seed, and with settings such as `grpo.kl_coefficient=0,grpo.num_steps=10`."""
    lines = [f'preset = "{preset}"', f"seed = {seed}", *(line for line in keys.split(",") if line)]
    return read_settings("\n".join(lines))


def finetuned(settings: Settings, folder: Path, given: argparse.Namespace) -> Path:
    """Return the folder of the last checkpoint; a training that was killed goes on."""
    output, machine = folder / "output", Machine.here()
    if not (output / CHECKPOINTS).exists():
        progress = folder / "progress"
        for made in (output, progress):
            made.mkdir(parents=True, exist_ok=True)
        finetune_policy(
            settings,
            boards=given.boards,
            pretrained=given.pretrained,
            checkpoint=None,
            facts={},
            engine=identify(machine.stockfish),
            engine_path=machine.stockfish,
            num_processes=1,
            cache_folder=folder.parent / "values",
            device=_CPU,
            work=Work(output, (), progress_folder=progress),
        )
    return max((output / CHECKPOINTS).iterdir())


class Games:
    """Plays policies against the same rungs on the same openings; the first is what the others are compared with."""

    def __init__(self, preset: str, seed: int, boards: Path, num_pairs: int, rungs: Sequence[str]) -> None:
        self._config = read_settings(f'preset = "{preset}"').evaluation
        self._seed, self._path, self._pairs = seed, Machine.here().stockfish, num_pairs
        parts = [rung.split(":") for rung in rungs]
        self._rungs = [Rung(nodes=1, random_share=float(share)) for share, _ in parts]
        self._ratings = [float(rating) for _, rating in parts]
        self._first: list[MatchResult] | None = None
        with self._engines() as pool:
            rng = numpy_stream(seed, "openings", "parts")
            count = num_pairs * len(rungs)
            self._openings = make_openings(self._config, count=count, rng=rng, pool=pool, exclude=position_keys(boards))
        names = " | ".join(f"{rung.name}: as played | adjudicated | wins, repetitions" for rung in self._rungs)
        print(f"| part | training | {names} | Elo as played | adjudicated |", flush=True)
        print("| --- " * (4 + 3 * len(rungs)) + "|", flush=True)

    def row(self, name: str, folder: Path, seconds: float) -> None:
        """Play a policy and print its row."""
        policy, _ = load_policy(folder, _CPU)
        results = []
        with self._engines() as pool:
            for number, rung in enumerate(self._rungs):
                opponent = rung.player(pool, numpy_stream(self._seed, "parts", number))
                openings = self._openings[number * self._pairs : (number + 1) * self._pairs]
                player = BestMovePlayer(policy, name)
                results.append(play_adjudicated(player, opponent, openings, config=self._config, pool=pool, on_games_done=lambda _: None))
        if self._first is None:
            self._first = results
        cells = [cell for result in results for cell in score_cells(result)]
        gains = [self._gain(results, adjudicated=adjudicated) for adjudicated in (False, True)]
        print(f"| {' | '.join([name, f'{seconds / 60:.1f} min', *cells, *gains])} |", flush=True)

    def _gain(self, results: Sequence[MatchResult], *, adjudicated: bool) -> str:
        assert self._first is not None
        if results is self._first:
            return ""
        scores = [[result.pair_scores(adjudicated=adjudicated) for result in of_player] for of_player in (results, self._first)]
        found = rating_difference(self._ratings, *scores)
        margin = Z95 * found.standard_error
        return Estimate(value=found.elo, low=found.elo - margin, high=found.elo + margin).text(Unit.ELO)

    def _engines(self) -> EnginePool:
        return EnginePool(self._path, num_processes=1, options={"Hash": PLAYING_HASH_MIB})


def score_cells(result: MatchResult) -> list[str]:
    """Return a match as cells: both scores, and how games ended."""
    wins, _, losses = result.wins_draws_losses()
    total = len(result.games)
    return [
        *(result.interval(adjudicated=adjudicated).estimate.text(Unit.SCORE) for adjudicated in (False, True)),
        f"{wins / total:.0%} won, {losses / total:.0%} lost, {result.ends()[End.REPETITION.value] / total:.0%}",
    ]


if __name__ == "__main__":
    main()
