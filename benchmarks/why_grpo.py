"""Trains finished runs' starts (pretrained policies) with other losses: `why_grpo.py RUN... --results FILE` prints a table.

FILE keeps the rows. All methods share optimizer, schedules and states: dataset boards and the checkpoints' self-play rounds.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch

from grpo.base.documents import read_document
from grpo.base.seeding import numpy_stream
from grpo.board.features import joined
from grpo.dataset.table import Split, board_arrays
from grpo.match.ladder import PlacedGames, RungGames, ladder_difference
from grpo.match.policy_players import BestMovePlayer
from grpo.match.regret import heldout_scores
from grpo.match.selection import Selection
from grpo.policy.checkpoints import checkpoint_folders, load_checkpoint
from grpo.policy.distribution import MoveDistribution, on_device
from grpo.policy.policy import NetworkPolicy
from grpo.settings.tree import Settings
from grpo.statistics.halving import Screened
from grpo.statistics.intervals import Z95, Estimate, Unit, between_runs, elo_estimate, normal_interval, within_runs
from grpo.train.control import Control, Knobs
from grpo.train.network_problem import MAX_STATES_PER_FORWARD, NetworkProblem, Sampler
from grpo.train.objective import Batch
from grpo.train.self_play import restored_round, state_counts
from grpo.train.states import DatasetStates, States, states_of_step
from grpo.train.trainer import Trainer
from steps.common.dataset import read_boards
from steps.common.measure import CONFIRMATION, LADDER, Arena, read_ladder
from steps.names import CHECKPOINTS, REPORT
from steps.run.device import torch_device
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import find_run


class AllMoves(NetworkProblem):
    """Weights every legal move by its probability, which gives the policy term's exact gradient."""

    def rollout(self, policy: NetworkPolicy, states: States, knobs: Knobs, step: int) -> Batch[States]:
        sampler = Sampler(policy=policy, temperature=knobs.temperature, seed=0, step=step, max_states=MAX_STATES_PER_FORWARD)
        old = sampler.distribution(states.positions)
        batch = Batch(
            states=states,
            state_weights=torch.ones(len(states)),
            columns=torch.arange(old.is_legal.shape[1]) * old.is_legal,
            weights=old.probs,
            old_log_probs=old.log_probs,
            rewards=states.values,
            advantages=(states.values - old.expectation(states.values)[:, None]) * old.is_legal,
            temperature=knobs.temperature,
            old=old,
        )
        return on_device(batch, policy.device)


class CrossEntropy(AllMoves):
    """The loss with `OnlyTargets` is KL(target || policy). The target is softmax(value / tau + power * ln start), not the reference."""

    def __init__(self, *args: Any, tau: float, power: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tau, self._power = tau, power

    def rollout(self, *args: Any) -> Batch[States]:
        batch = super().rollout(*args)
        return replace(batch, advantages=torch.zeros_like(batch.advantages))

    def distribution(self, policy: NetworkPolicy, part: Batch[States]) -> MoveDistribution:
        if policy is not self.reference:
            return super().distribution(policy, part)
        start = self._power * super().distribution(policy, part).log_probs if self._power else 0.0
        return MoveDistribution.from_logits(part.states.values / self._tau + start, part.states.positions.is_legal, temperature=1.0)


class OnlyTargets(Control):
    """Leaves only KL(reference || policy) in the loss."""

    def knobs(self, step: int) -> Knobs:
        return replace(super().knobs(step), entropy_coefficient=0.0, kl_coefficient=0.0, recovery_coefficient=1.0)


START: Final = "start"
GRPO: Final = "GRPO, G = 16"
METHODS: Final[dict[str, Any]] = {
    GRPO: (NetworkProblem, Control, {}),
    "exact gradient over all moves": (AllMoves, Control, {}),
    **{f"cross-entropy to softmax(value / {tau})": (partial(CrossEntropy, tau=tau), OnlyTargets, {}) for tau in (0.03, 0.01, 0.1)},
    # The target maximizes value + 0.025 * entropy - 0.03 * KL(policy || start), with the coefficients at the end of a default run.
    "cross-entropy to start^0.55 * softmax(value / 0.055)": (partial(CrossEntropy, tau=0.055, power=0.55), OnlyTargets, {}),
    **{f"GRPO, G = {size}": (NetworkProblem, Control, {"group_size": size}) for size in (4, 8, 64)},
}
"""Name -> problem, control, changed settings. Methods with changed settings play no games."""


class Experiment:
    def __init__(self, name: str, *, num_steps: int, num_pairs: int, num_rung_pairs: int) -> None:
        self._machine = Machine.here()
        device, store = torch_device(self._machine), Store.of(self._machine)
        run = find_run(name, store)
        outputs = [run.output_of(step) for step in ("join_boards", "pretrain", "finetune", "calibrate", "screen", "select")]
        boards, pretrained, finetuned, calibrated, screened, selected = (store.open(output) for output in outputs if output is not None)
        self._settings = Settings.model_validate(run.facts["settings"])
        self._config, self._seed = self._settings.grpo.model_copy(update={"num_steps": num_steps}), self._settings.seed
        table, self._start = read_boards(boards), NetworkPolicy.load(pretrained, device)
        self._heldout, train = board_arrays(table, split=Split.HELDOUT, strong=True), board_arrays(table, split=Split.TRAIN)
        num_dataset, self._num_own = state_counts(self._config.states_per_step, self._config.self_play_fraction)
        self._dataset = DatasetStates(train, states_per_step=num_dataset, seed=self._seed, prepared=self._start.prepared)
        saved = [load_checkpoint(folder, device, NetworkPolicy)[1] for folder in checkpoint_folders(finetuned / CHECKPOINTS)]
        # Checkpoint n's round stands for round n.
        num_rounds = -(-num_steps // self._config.self_play_steps)
        self._rounds = [restored_round(state.tensors_of("task."), self._start.prepared) for state in saved[:num_rounds]]
        openings, self._ladder = read_document(screened / REPORT, Screened).openings, read_ladder(calibrated)
        self._openings = openings[CONFIRMATION][:num_pairs], openings[LADDER][:num_rung_pairs], openings[LADDER][-num_rung_pairs:]
        placement, names = read_document(selected / REPORT, Selection).ladder, [rung.name for rung in self._ladder.rungs]
        self._rungs = [names.index(games.rung) for games in placement.games] if placement else []
        self._start_games = self._ladder_games(self._start)

    def states(self, step: int) -> States:
        """The problem takes `self` as its dataset."""
        number, step_of_round = divmod(step, self._config.self_play_steps)
        order, images = ("own_games", number, "order"), ("own_games", number, "reflection")
        own = states_of_step(self._rounds[number], step_of_round, self._num_own, seed=self._seed, order=order, images=images)
        return joined([self._dataset.states(step), own])

    def measured(self, name: str) -> dict[str, Any]:
        policy, facts = (self._start, {}) if name == START else self._trained(*METHODS[name])
        scores = heldout_scores(policy, self._heldout)
        facts |= {"best": scores.regret_best.tolist(), "sampled": scores.regret_sampled.tolist()}
        if plays(name):
            with Arena(self._settings, self._machine, lambda *_: None) as arena:
                match = arena.match(BestMovePlayer(policy, name), BestMovePlayer(self._start, START), self._openings[0])
            gain = ladder_difference(self._ladder, self._ladder_games(policy), self._start_games, adjudicated=False)
            facts |= {"own": asdict(elo_estimate(match.interval())), "ladder": asdict(gain)}
        return facts

    def _trained(self, problem: Any, control: type[Control], changes: dict[str, int]) -> tuple[NetworkPolicy, dict[str, Any]]:
        config, began = self._config.model_copy(update=changes), time.process_time()
        trainer: Any = Trainer(problem(self._start, self, config, seed=self._seed), self._start.copied(), config, seed=self._seed)
        trainer.control = control(config, first_step=0)
        records = [trainer.step() for _ in range(config.num_steps)]
        assert not any(record.stop for record in records)
        updates = sum(record.metrics["grpo/optimizer_steps"] for record in records)
        return trainer.evaluation_policy, {"seconds": time.process_time() - began, "updates": updates}

    def _ladder_games(self, policy: NetworkPolicy) -> PlacedGames:
        games = list[RungGames]()
        with Arena(self._settings, self._machine, lambda *_: None) as arena:
            for index, openings in zip(self._rungs, self._openings[1:], strict=True):
                rung = self._ladder.rungs[index]
                opponent = rung.player(arena.pool, numpy_stream(self._seed, "placement", "candidate", rung.name))
                games.append(RungGames(rung=index, result=arena.match(BestMovePlayer(policy, "policy"), opponent, openings)))
        return PlacedGames(probes=(), games=tuple(games), z=Z95)


def plays(name: str) -> bool:
    return name != START and not METHODS[name][2]


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """After a regret comes its difference from GRPO; `seeds` marks an interval between runs."""
    yield "| method | seeds | CPU time | regret of best moves | of sampled moves | own start | ladder gain |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    grpo = {row["run"]: row for row in rows if row["method"] == GRPO}
    for method in (START, *METHODS):
        own = [(row, grpo[row["run"]]) for row in rows if row["method"] == method and row["run"] in grpo]
        if own:
            ratios = [row["seconds"] / other["seconds"] for row, other in own if method != START]
            cells = [method, str(len(own)), f"{fmean(ratios):.2f}" if ratios else ""]
            for key in ("best", "sampled"):
                differences = [np.subtract(row[key], other[key]) for row, other in own]
                changes = [normal_interval(float(change.mean()), float(change.std()) / len(change) ** 0.5) for change in differences]
                cells.append(f"{fmean(fmean(row[key]) for row, _ in own):.4f}" + f"; {text(changes, Unit.REGRET)}" * (method != GRPO))
            cells += [text([Estimate(**row[key]) for row, _ in own if key in row], Unit.ELO) for key in ("own", "ladder")]
            yield f"| {' | '.join(cells)} |"


def text(runs: Sequence[Estimate], unit: Unit) -> str:
    between = between_runs([run.value for run in runs])
    seeds = f", seeds [{between.text(unit, is_change=True).partition('[')[2]}" if between else ""
    return within_runs(runs).text(unit, is_change=True) + seeds if runs else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="ids")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=150, help="against the start")
    parser.add_argument("--rung-pairs", type=int, default=100, help="against each rung")
    options = parser.parse_args()
    experiment = cache(partial(Experiment, num_steps=options.steps, num_pairs=options.pairs, num_rung_pairs=options.rung_pairs))
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    jobs = [(run, name) for run in options.runs for name in (START, *METHODS)]
    for run, name in sorted(jobs, key=lambda job: job[1] != START and not plays(job[1])):
        if (run, name) not in [(row["run"], row["method"]) for row in rows]:
            rows.append({"run": run, "method": name, **experiment(run).measured(name)})
            with options.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
