"""Imitation: the loss is on answers alone, the same whenever it is run, and the best weights stay."""

from functools import cache

import pytest
import torch
from made_language import language_table

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import numpy_stream
from grpo.dataset.table import Split
from grpo.language.generate.legal_moves import move_masks
from grpo.language.learn import imitation
from grpo.language.learn.imitation import imitate, validation_losses
from grpo.language.model.policy import LanguagePolicy, load_model
from grpo.language.text.examples import LanguageBoards
from grpo.language.text.tasks import TextTask
from grpo.metrics.records import Record
from grpo.policy.policy import weights_hash
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import PretrainConfig

TINY = LanguageConfig(small_width=16, small_num_layers=1)
SHORT = PretrainConfig(num_steps=3, batch_size=4, steps_per_validation=1, learning_rate=3e-3)


@cache
def boards(split: Split) -> LanguageBoards:
    return LanguageBoards(language_table(16, split=split), split, TINY)


def new_policy() -> LanguagePolicy:
    return load_model(TINY, seed=0, device=torch.device("cpu"))


def imitated(config: PretrainConfig = SHORT, *, seed: int = 0) -> tuple[LanguagePolicy, list[Record]]:
    policy = new_policy()
    return policy, list(imitate(policy, boards(Split.TRAIN), boards(Split.VALIDATION), config, seed=seed))


def test_it_is_the_same_whenever_it_is_run() -> None:
    (one, records), (other, others) = imitated(), imitated()
    assert records == others
    assert weights_hash(one) == weights_hash(other)
    assert weights_hash(one) != weights_hash(imitated(seed=1)[0])


def test_the_policy_ends_with_the_best_weights_of_all_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def told(policy: LanguagePolicy, _: object) -> dict[str, float]:
        seen.append(weights_hash(policy))
        return {"language/imitation_validation_loss": [2.0, 1.0, 3.0][len(seen) - 1]}

    monkeypatch.setattr(imitation, "validation_losses", told)
    policy, _ = imitated()
    assert len(set(seen)) == 3
    assert weights_hash(policy) == seen[1]


@pytest.mark.parametrize("legal_moves", [True, False])
def test_only_answers_are_learned(legal_moves: bool) -> None:
    """The loss is that of each answer alone, by hand: of allowed tokens, without padding, with the end, nothing of the prompt."""
    policy = new_policy().with_legal_moves(legal_moves)
    examples = boards(Split.TRAIN).draw(numpy_stream(0, "test"), 8)
    assert {example.task for example in examples} == set(TextTask)
    total, count = 0.0, 0
    with torch.no_grad():
        for example in examples:
            (prompt,), (answer,) = policy.tokens([example.prompt]), policy.tokens([example.target])
            answer = [*answer, policy.end_id]
            scores = policy.network(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 :]
            [mask] = move_masks(policy, [example.prompt])
            states = [None] * len(answer) if mask is None else mask.states(answer)
            for state, row, token in zip(states, scores, answer, strict=False):
                total += (row if state is None else row[list(state)]).logsumexp(0).item() - row[token].item()
            count += len(answer)
    for pad in (policy.pad_id, policy.end_id):
        policy.pad_id = pad
        assert validation_losses(policy, examples)["language/imitation_validation_loss"] == pytest.approx(total / count, rel=1e-5)
    assert policy.pad_id == policy.end_id, "padding that is the end does not hide the end"


def test_validation_reads_no_more_answers_at_once_than_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, examples, sizes, sums = new_policy(), boards(Split.VALIDATION).draw(numpy_stream(0, "test"), 8), list[int](), imitation._sums
    expected = validation_losses(policy, examples)
    monkeypatch.setattr(imitation, "_sums", lambda *given: [sizes.append(len(given[1])), sums(*given)][1])
    policy.config = TINY.model_copy(update={"answers_per_forward": 3})
    assert validation_losses(policy, examples) == pytest.approx(expected, rel=1e-5)
    assert sizes == [3, 3, 2]


def test_a_loss_that_is_no_number_stops_it_by_name() -> None:
    policy = new_policy()
    policy.network.transformer.wte.weight.data[:] = torch.nan
    with pytest.raises(NonFiniteError, match=r"pretraining step 1: the loss is nan; lower pretrain\.learning_rate"):
        next(imitate(policy, boards(Split.TRAIN), boards(Split.VALIDATION), SHORT, seed=0))
