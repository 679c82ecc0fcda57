"""One batch trained on alone, the first thing to try when nothing is learnt: a policy that cannot be moved towards its own better answers
cannot be trained at all, and then gradients, advantages, masks or the learning rate are at fault."""

import torch
from small_language import CONFIG, cloned_policy, language_boards
from written_language import language_trainer

from grpo.base.seeding import numpy_stream
from grpo.language.learn.logprobs import exact_measures
from grpo.language.learn.rollouts import rollout_metrics, write_rollout
from grpo.language.text.rewards import grade
from grpo.settings.tree import read_settings

SETTINGS = read_settings('policy.kind = "language"\ngrpo.states_per_step = 4\ngrpo.group_size = 6')


def test_the_loss_of_one_batch_falls_while_the_policy_stays_near_the_reference() -> None:
    policy, reference, config = cloned_policy(), cloned_policy(), SETTINGS.grpo
    examples = language_boards().draw(numpy_stream(0, "prompts", 0), config.states_per_step)
    batch = write_rollout(
        policy,
        reference,
        examples,
        SETTINGS.model_copy(update={"language": CONFIG}),
        grader=grade,
        temperature=1.0,
        content_fraction=1.0,
        step=0,
    )
    metrics = rollout_metrics(batch)
    assert 0 < metrics["language/parse_rate"] <= 1
    assert metrics["language/kl_max"] < 1e-6
    trainer, rows = language_trainer(policy, reference, language_boards(), SETTINGS), batch.rows
    optimiser = torch.optim.Adam(policy.network.parameters(), lr=1e-5)
    losses = []
    for _ in range(3):
        measured = trainer._backward(batch, rows, trainer.control.knobs(0), is_first=False)
        losses.append(measured.mean("loss"))
        if len(losses) == 1:
            assert measured.clipped == 0
        optimiser.step()
    assert losses[-1] < losses[0]
    now = exact_measures(policy, reference, batch.batch, temperature=config.temperature)
    change, advantages = (now.log_probs - batch.measures.log_probs).sum(1)[rows], batch.advantages[rows]
    assert change[advantages > 0].mean() > 0 > change[advantages < 0].mean()
    assert 0 < now.of_answers()[1].mean() < 0.1
