"""Measures the last run's champion against its pretrained policy by fresh games: the headline result of the project.

python benchmarks/headline.py [--pairs 300] [--home .chess_grpo] [--selection FOLDER] [--seed S]

Reads the outputs behind an output of `select` (the latest in the home, unless one is named), and compares its candidate, promoted or
not. Openings are neither boards of the dataset nor openings of the selection, and each serves one match only. All matches are played with
both colours, best moves against best moves unless another temperature is named:

a, b  candidate against the pretrained policy, as played and with undecided games adjudicated;
c     the same, each at its best temperature, found in games on other openings;
d     candidate against a control: the pretrained policy after imitating as many more of the moves that it was trained on as GRPO used
      positions, or as many as are named, such as what fits into GRPO's time;
e     candidate and pretrained policy against Stockfish with one node, as played and adjudicated.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import chess
import torch

from grpo.base.seeding import numpy_stream, torch_stream
from grpo.board.encoding import position_key
from grpo.dataset.labels import label_arrays
from grpo.dataset.table import LabelArrays
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.match.adjudication import adjudicate
from grpo.match.matches import MatchResult, play_match
from grpo.match.openings import make_openings
from grpo.match.players import BestMovePlayer, EnginePlayer, Player, SamplingPlayer
from grpo.policy.distribution import NetworkPolicy, PositionBatch
from grpo.settings.tree import Settings
from grpo.train.checkpoints import checkpoint_name, load_policy
from grpo.train.imitation import WEIGHT_DECAY
from steps.run.dataset import position_keys, read_boards, read_game_table
from steps.run.machine import Machine
from steps.run.names import CHECKPOINTS

TEMPERATURES = (0.0, 0.1, 0.2, 0.3, 0.5)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--temperature-pairs", type=int, default=60)
    parser.add_argument("--home", type=Path, default=Machine.here().home)
    parser.add_argument("--control-positions", type=int, help="positions that the control imitates (default: those of GRPO's steps)")
    parser.add_argument("--selection", type=Path, help="an output of `select` in that home (default: the latest)")
    parser.add_argument("--seed", type=int, help="of the openings and of the control (default: the run's)")
    given = parser.parse_args()
    machine, cpu = Machine.here(), torch.device("cpu")
    torch.set_num_threads(machine.num_threads)
    boards, pretrained, finetuned, selected, settings = run_behind(given.selection or newest_selection(given.home), given.home)
    decision = json.loads((selected / "report.json").read_text())
    imitation = json.loads((pretrained / "report.json").read_text())
    step = decision["candidate_step"]
    champion, start = (load_policy(folder, cpu)[0] for folder in (finetuned / CHECKPOINTS / checkpoint_name(step), pretrained))
    seed = settings.seed if given.seed is None else given.seed
    ended = "its validation loss had stopped falling" if imitation["has_converged"] else "max_steps was reached: NOT converged"
    print(f"seed {settings.seed}, openings by {seed}; verdict of the run: {decision['verdict']}")
    print(f"imitation took {imitation['num_steps']:,} steps, until {ended}")
    used = position_keys(boards) | openings_of(selected / "games.pgn")
    with EnginePool(machine.stockfish, num_processes=machine.num_threads, options={"Hash": PLAYING_HASH_MIB}) as pool:
        games = Games(settings, pool, used, seed)
        show(f"a  step {step} against start, as played", result := games.play(best(champion), best(start), given.pairs))
        show("b  the same games adjudicated", result, adjudicated=True)
        temperatures = [games.best_temperature(policy, start, given.temperature_pairs) for policy in (champion, start)]
        players = [games.player(policy, temperature) for policy, temperature in zip((champion, start), temperatures, strict=True)]
        what = f"c  step {step} at T = {temperatures[0]} against start at T = {temperatures[1]}, as played"
        show(what, games.play(players[0], players[1], given.pairs))
        for name, policy in ((f"step {step}", champion), ("start", start)):
            engine = EnginePlayer(pool, limit="nodes 1", name="stockfish-1-node")
            show(f"e  {name} against Stockfish, 1 node, as played", result := games.play(best(policy), engine, given.pairs))
            show("   the same adjudicated", result, adjudicated=True)
        train = label_arrays(read_boards(boards), read_game_table(boards), max_positions=settings.pretrain.max_positions)
        num_positions = given.control_positions or step * settings.grpo.states_per_step
        control = imitating_on(pretrained, train, num_positions, settings, seed)
        what = f"d  step {step} against a control that imitated {num_positions:,} positions more"
        show(what + ", as played", result := games.play(best(champion), best(control), given.pairs))
        show("   the same adjudicated", result, adjudicated=True)
        show("   the control against the start, as played", games.play(best(control), best(start), given.pairs))
    return 0


class Games:
    """Matches on openings that no other has."""

    def __init__(self, settings: Settings, pool: EnginePool, used: set[str], seed: int) -> None:
        self._settings, self._pool, self._used, self._seed = settings, pool, used, seed
        self._num_matches = 0

    def play(self, first: Player, second: Player, pairs: int) -> MatchResult:
        """Return the games of two players on fresh openings, adjudicated too."""
        return self._on(self._openings(pairs), first, second)

    def best_temperature(self, policy: NetworkPolicy, start: NetworkPolicy, pairs: int) -> float:
        """Return the temperature at which a policy scores best against the start's best moves; all play the same openings."""
        openings = self._openings(pairs)
        scores = {}
        for temperature in TEMPERATURES:
            result = self._on(openings, self.player(policy, temperature), best(start))
            scores[temperature] = result.interval().score
        return max(scores, key=lambda temperature: scores[temperature])

    def player(self, policy: NetworkPolicy, temperature: float) -> Player:
        """Return the policy as a player; 0 is its best move."""
        if temperature == 0:
            return best(policy)
        self._num_matches += 1
        rng = torch_stream(self._seed, "headline", "moves", self._num_matches)
        return SamplingPlayer(policy, f"T = {temperature}", temperature=temperature, rng=rng)

    def _openings(self, pairs: int) -> list[str]:
        self._num_matches += 1
        rng = numpy_stream(self._seed, "headline", "openings", self._num_matches)
        return make_openings(self._settings.evaluation, count=pairs, rng=rng, pool=self._pool, exclude=self._used)

    def _on(self, openings: Sequence[str], first: Player, second: Player) -> MatchResult:
        config = self._settings.evaluation
        result = play_match(first, second, openings, max_plies=config.max_plies)
        return adjudicate(result, self._pool)


def best(policy: NetworkPolicy) -> BestMovePlayer:
    """Return the player of a policy's best moves."""
    return BestMovePlayer(policy, "policy")


def imitating_on(pretrained: Path, train: LabelArrays, num_positions: int, settings: Settings, seed: int) -> NetworkPolicy:
    """Return the pretrained policy after imitation of so many more positions, at the final learning rate of imitation."""
    policy, _ = load_policy(pretrained, torch.device("cpu"))
    rate = json.loads((pretrained / "report.json").read_text())["learning_rate"]
    optimiser = torch.optim.AdamW(policy.network.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    positions, played = PositionBatch.from_arrays(train), torch.from_numpy(train.played)
    order = torch.cat(
        [torch.randperm(len(train), generator=torch_stream(seed, "control", part)) for part in range(1 + num_positions // len(train))]
    )
    for rows in torch.split(order[:num_positions], settings.pretrain.batch_size):
        distribution = policy.distribution(positions.select_rows(rows), temperature=1.0)
        optimiser.zero_grad(set_to_none=True)
        (-distribution.log_prob(played[rows, None]).mean()).backward()
        optimiser.step()
    return policy


def openings_of(pgn: Path) -> set[str]:
    """Return the keys of the positions that games began in."""
    return {position_key(chess.Board(fen)) for fen in re.findall(r'^\[FEN "(.*)"\]$', pgn.read_text(), flags=re.MULTILINE)}


def newest_selection(home: Path) -> Path:
    """Return the folder of the home's last output of `select`."""
    selections = sorted((home / "outputs" / "select").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    if not selections:
        sys.exit(f"{home / 'outputs'} holds no finished run: `make run` first, or give --home")
    return selections[-1].parent


def run_behind(selection: Path, home: Path) -> tuple[Path, Path, Path, Path, Settings]:
    """Return the folders of dataset, start, fine-tuning and selection of a `select`, and the settings that they were made with."""
    chosen = json.loads((selection / "manifest.json").read_text())["parts"]
    if "opening book" in chosen["inputs"]:
        sys.exit("that run took its openings from a book; the headline is stated on the generator's")
    by_hash = {json.loads(path.read_text())["output_hash"]: path for path in (home / "outputs").glob("*/*/manifest.json")}
    boards, pretrained, finetuned = (by_hash[chosen["inputs"][name]] for name in ("boards", "pretrained", "finetuned"))
    parts = [json.loads(path.read_text())["parts"]["settings"] for path in (pretrained, finetuned)]
    # Without the section `boards`: where files lay is in no slice, and nothing here reads it.
    merged = {name: value for part in (*parts, chosen["settings"]) for name, value in part.items() if name in Settings.model_fields}
    return boards.parent, pretrained.parent, finetuned.parent, selection, Settings.model_validate(merged, strict=False)


def show(what: str, result: MatchResult, *, adjudicated: bool = False) -> None:
    """Print a line of the table."""
    ends = ", ".join(f"{count} {end}" for end, count in result.ends().items() if count)
    print(f"{time.strftime('%H:%M:%S')} | {what} | {result.interval(adjudicated=adjudicated)} | {ends}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
