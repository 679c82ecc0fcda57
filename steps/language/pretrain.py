"""Train a language model by imitation, and check that its answers can be parsed."""

from pydantic import ConfigDict

from grpo.base.documents import Document, write_document
from grpo.dataset.table import Split
from grpo.language.generate.answers import refuse_too_long, refuse_truncated
from grpo.language.learn.imitation import imitate
from grpo.language.learn.parse_rate_gate import ParseRate, gate_metrics, parse_rates, refuse_unreadable
from grpo.language.model.policy import load_model
from grpo.language.text.examples import ImitationBoards, LanguageBoards
from grpo.metrics.records import Record
from grpo.policy.policy import weights_hash
from grpo.settings.kinds import LANGUAGE
from steps.common.dataset import read_boards, read_game_table
from steps.language.answers import shown_examples, write_answers
from steps.names import REPORT
from steps.run.outside import unread_by_pretrain
from steps.run.work import Work


class LanguageImitation(Document):
    """Imitation adds fields: the best step's `imitation_loss` and `imitation_validation_loss[/TASK]`, in nats per token."""

    model_config = ConfigDict(extra="allow")

    model: str
    commit: str | None
    num_parameters: int
    num_tokens: int  # Size of the vocabulary.
    num_steps: int
    best_step: int  # Step of the saved weights; 0 without imitation.
    weights: str  # Hash of the saved weights.
    parse_rates: dict[str, ParseRate]  # Text task -> rate.


def body(work: Work) -> None:
    """Write the policy with the lowest validation loss (or the initial policy), a report and example answers.

    Raises UnreadableError for a low parse rate, NonFiniteError, TooLongError and `load_model`'s errors, all before the policy is written.
    """
    settings, table = work.settings, read_boards(work.inputs["join_boards"])
    # Settings that imitation does not read get their defaults: the saved policy must not depend on them.
    config, num_steps = settings.language.model_copy(update=unread_by_pretrain(LANGUAGE)), settings.pretrain.num_steps
    games = read_game_table(work.inputs["join_boards"])
    train = ImitationBoards(table, games, config, max_positions=settings.pretrain.max_positions)
    validation = LanguageBoards(table, Split.VALIDATION, config)
    policy = load_model(config, seed=settings.seed, device=work.device)
    shown = shown_examples(validation, seed=settings.seed)
    refuse_too_long(policy, policy.tokens([example.prompt for example in shown]))
    refuse_truncated(policy, policy.tokens([example.target for example in shown]))
    records: list[Record] = []
    for record in imitate(policy, train, validation, settings.pretrain, seed=settings.seed):
        work.log(record)
        work.progress(record.step, num_steps, "steps")
        records.append(record)
    rates = parse_rates(policy, validation, seed=settings.seed)
    refuse_unreadable(rates, config, num_steps=num_steps)
    work.log(Record(num_steps, gate_metrics(rates)))
    policy.save(work.folder)
    write_answers(work.folder, {"pretrained": policy}, shown)
    best = min(records, key=lambda record: record.metrics["language/imitation_validation_loss"], default=None)
    report = LanguageImitation(
        model=policy.origin.model,
        commit=policy.origin.commit,
        num_parameters=sum(weights.numel() for weights in policy.network.parameters()),
        num_tokens=len(policy.tokenizer),
        num_steps=num_steps,
        best_step=0 if best is None else best.step,
        weights=weights_hash(policy),
        parse_rates={str(task): rate for task, rate in rates.items()},
        **({} if best is None else {name.removeprefix("language/"): value for name, value in best.metrics.items()}),
    )
    write_document(work.folder / REPORT, report)
