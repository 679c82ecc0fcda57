"""The step `finetune`. `steps.language.finetune` replaces `body` for language models."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import chess

from grpo.board.encoding import decode, position_key
from grpo.dataset.table import BoardArrays, Split, board_arrays
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.findings import Diagnosis
from grpo.diagnosis.history import History
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.match.regret import heldout_metrics
from grpo.metrics.table import FINDING
from grpo.policy.checkpoints import load_checkpoint
from grpo.policy.distribution import PRECISIONS
from grpo.policy.policy import NetworkPolicy
from grpo.settings.tree import Settings
from grpo.train.network_problem import NetworkProblem
from grpo.train.self_play import SelfPlay, state_counts
from grpo.train.states import DatasetStates, Values, with_reference
from grpo.train.trainer import Trainer
from steps.cards.page import CardPart, Seen, page_part
from steps.common.dataset import read_boards
from steps.common.training_loop import TrainingLoop
from steps.names import FINDINGS, REPORT
from steps.pages.results import Training
from steps.run.step import OfRun, Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="finetune",
    says="Trains with GRPO, and recovers or stops when entropy becomes critical.",
    reads=("seed", "boards.depth", "policy", "grpo"),
    reads_kind=True,
    inputs=("join_boards", "pretrain"),
    outside=(Outside.ENGINE, Outside.DEVICE),
    of_run=(OfRun.CHECKPOINT,),
    shows=("heldout/regret_best", "heldout/regret_sampled", "heldout/entropy"),
    pages=(REPORT, FINDINGS),
    resources="training",
)


_NUM_SHOWN: Final = 40  # Latest events on the card.


def body(work: Work) -> None:
    """The pretrained policy is the KL's reference. Training begins at this policy, or at the checkpoint to resume from."""
    settings, checkpoint = work.settings, work.of_run.get(OfRun.CHECKPOINT)
    table = read_boards(work.inputs["join_boards"])
    train = board_arrays(table, split=Split.TRAIN)
    heldout = board_arrays(table, split=Split.HELDOUT, strong=True)
    reference = NetworkPolicy.load(work.inputs["pretrain"], work.device)
    policy = reference.copied()
    origin = None if checkpoint is None else load_checkpoint(checkpoint, work.device, NetworkPolicy)
    first = 0 if origin is None else origin[1].step
    # The engines start at the first query; the dataset's boards have values.
    with EnginePool(work.machine.stockfish, num_processes=work.machine.num_engines, options=engine_options()) as pool:

        def values(boards: Sequence[chess.Board]) -> Iterator[ValueTable | EngineError]:
            return value_tables(boards, pool, depth=settings.boards.depth)

        dataset, self_play = _states(work, train, heldout, values, reference, first=first)
        problem = NetworkProblem(reference, dataset, settings.grpo, seed=settings.seed, self_play=self_play, values=values)
        trainer = Trainer(problem, policy, settings.grpo, seed=settings.seed, first_step=first)
        if origin is not None:
            before, now = (facts["settings"]["grpo"]["num_own_moves"] for facts in (origin[1].facts, work.facts))
            trainer.begin_from(*origin, takes_optimizer=before == now)
            if before != now:  # Adam's moments belong to the old objective.
                work.say("the optimizer begins anew, because grpo.num_own_moves differs from the checkpoint's")
        TrainingLoop(work, trainer, lambda: heldout_metrics(trainer.evaluation_policy, heldout)).run()


def _states(
    work: Work, train: BoardArrays, heldout: BoardArrays, values: Values, reference: NetworkPolicy, *, first: int
) -> tuple[DatasetStates, SelfPlay | None]:
    config, seed = work.settings.grpo, work.settings.seed
    num_dataset, num_own = state_counts(config.states_per_step, config.self_play_fraction)
    prepared = partial(with_reference, policy=reference.at_precision(PRECISIONS[config.precision]))
    dataset = DatasetStates(train, states_per_step=num_dataset, seed=seed, prepared=prepared)
    if not num_own:
        return dataset, None
    return dataset, SelfPlay(
        values=values,
        config=config,
        size=num_own,
        first_step=first,
        seed=seed,
        # Self-play never trains on held-out positions.
        exclude=frozenset(position_key(decode(row)) for row in heldout.encodings),
        num_processes=work.machine.num_threads,
        prepared=prepared,
        say=work.say,
    )


def card(seen: Seen) -> list[CardPart]:
    from steps.cards.training import charts

    report, records, diagnosis = seen.document(Training), seen.history(), seen.document(Diagnosis, FINDINGS)
    events = [(record.step, event) for record in records for event in record.events]
    if diagnosis is None and any(event.name == FINDING for _, event in events):  # Training is not over.
        diagnosis = diagnose(History.of_records(records), Settings.model_validate(seen.settings))
    findings = () if diagnosis is None else diagnosis.findings
    head = page_part("finetune", seen=seen, ended="" if report is None else report.end, findings=findings)
    tail = page_part("events", events=events[::-1][:_NUM_SHOWN], num_events=len(events))
    return [head, *charts(seen, "finetune"), tail]
