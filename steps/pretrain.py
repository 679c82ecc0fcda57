"""The step `pretrain`. `steps.language.pretrain` replaces `body` for language models."""

from typing import Final

from grpo.base.documents import Document, write_document
from grpo.dataset.labels import label_arrays
from grpo.dataset.table import Split, board_arrays
from grpo.metrics.records import Record
from grpo.metrics.table import TASKS
from grpo.policy.policy import new_policy, weights_hash
from grpo.train.imitation import imitate
from steps.cards.page import CardPart, Seen, page_part
from steps.common.dataset import read_boards, read_game_table
from steps.names import REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="pretrain",
    says="Imitates the moves played, or an engine's values (language models that list moves). Keeps the weights with the lowest"
    " validation loss.",
    reads=("seed", "policy", "pretrain"),
    inputs=("join_boards",),
    outside=(Outside.DEVICE, Outside.MODEL),
    shows=("imitation/validation_loss", "imitation/top1", "imitation/entropy"),
    pages=(REPORT,),
    headlines=("imitation/validation_loss", "imitation/top1"),
    resources="training",
    is_inherited=True,
    is_registered=True,
)


class Imitation(Document):
    """Fields from `learning_rate` on are of the best step; losses and entropy are in nats."""

    num_positions: int
    num_steps: int
    best_step: int  # Step of the lowest validation loss, whose weights are saved.
    weights: str  # Hash.
    learning_rate: float
    train_loss: float  # Mean since the previous validation.
    validation_loss: float
    top1: float  # Fraction of validation boards whose played move is the likeliest.
    top5: float  # Fraction whose played move is among the five likeliest.
    entropy: float


def body(work: Work) -> None:
    settings, boards = work.settings, work.inputs["join_boards"]
    table = read_boards(boards)
    # `label_arrays` adds further positions of the games.
    train = label_arrays(table, read_game_table(boards), max_positions=settings.pretrain.max_positions)
    validation = board_arrays(table, split=Split.VALIDATION)
    policy = new_policy(settings.policy, seed=settings.seed, device=work.device)
    records: list[Record] = []
    for record in imitate(policy, train, validation, settings.pretrain, seed=settings.seed):
        work.log(record)
        work.progress(record.step, settings.pretrain.num_steps, "steps")
        records.append(record)
    best = min(records, key=lambda record: record.metrics["imitation/validation_loss"])
    policy.save(work.folder)  # `imitate` ends with the best step's weights.
    measured = {name.removeprefix("imitation/"): value for name, value in best.metrics.items()}
    report = Imitation(num_positions=len(train), num_steps=records[-1].step, best_step=best.step, weights=weights_hash(policy), **measured)
    write_document(work.folder / REPORT, report)


def card(seen: Seen) -> list[CardPart]:
    from steps.cards.training import charts

    head = page_part("pretrain", seen=seen, report=seen.read(), tasks=TASKS)
    return [head, *charts(seen, "pretrain")]
