"""Name, unit and meaning of every metric and event; `docs/metrics.md` is printed from this table.

A "deeper search" has depth `evaluation.heldout_depth`; rewards come from a search at `boards.depth`. "Points" are the unit of a language
model's reward.
"""

from collections.abc import Mapping
from typing import Final

from grpo.board.phases import PHASES
from grpo.metrics.shared import BUDGET_SPENT, ENTROPY_CRITICAL, TERM_PAIRS, TERMS, interval_names

_Row = tuple[str, str, str]


def _by_phase(name: str, unit: str, meaning: str) -> list[_Row]:
    return [(name, unit, meaning), *((f"{name}/{phase}", unit, f"{meaning} {phase.capitalize()} boards only.") for phase in PHASES)]


def _by_term(name: str, unit: str, meaning: str) -> list[_Row]:
    return [(f"{name}/{term}", unit, meaning) for term in TERMS]


TASKS: Final[Mapping[str, str]] = {"move": "policy", "environment": "environment"}
"""A language model's text tasks: name -> display name."""


def _by_task(name: str, unit: str, meaning: str) -> list[_Row]:
    parts = [(f"{name}/{task}", unit, f"{meaning} {words.capitalize()} task only.") for task, words in TASKS.items()]
    return [(name, unit, meaning), *parts]


REWARD_PARTS: Final[Mapping[str, str]] = {
    "structure": "Fraction of sections present.",
    "parsing": "Fraction of fields that can be parsed.",
    "move_quality": "Policy task: quality of the listed moves.",
    "evaluation": "Policy task: accuracy of the evaluations.",
    "best_move": "Policy task: quality of the named best move.",
    "similarity": "Environment task: correct fraction of the changes to the position.",
    "outcome": "Environment task: correct reward, `terminated` and `truncated`.",
}
"""Part of a language model's reward -> meaning."""


def _with_interval(name: str, unit: str, meaning: str) -> list[_Row]:
    meanings = (meaning, *(f"{word} end of the 95 % interval." for word in ("Lower", "Upper")))
    return [(end, unit, text) for end, text in zip(interval_names(name), meanings, strict=True)]


def _by_pair(name: str, meaning: str) -> list[_Row]:
    return [(f"{name}/{one}_{other}", "factor", meaning) for one, other in TERM_PAIRS]


def _of_update(problem: str) -> list[_Row]:
    return [
        (f"{problem}/gradient_norm", "factor", "Mean gradient norm before clipping."),
        (f"{problem}/skipped", "steps", "Rollouts or optimizer steps skipped as non-finite."),
        (f"{problem}/optimizer_steps", "steps", "Optimizer steps on this rollout."),
    ]


_ROWS: Final = (
    ("boards/rows", "boards", "Boards in the dataset."),
    ("checks/failed", "expectations", "Failed checks of the dataset."),
    ("imitation/train_loss", "nats", "Mean cross-entropy of the move played, since the last validation."),
    ("imitation/validation_loss", "nats", "Mean cross-entropy of the move played, on boards of other games."),
    ("imitation/top1", "fraction of boards", "The most likely move is the move played."),
    ("imitation/top5", "fraction of boards", "The move played is among the five most likely."),
    ("imitation/entropy", "nats", "Mean exact entropy at T = 1."),
    ("imitation/learning_rate", "factor", "Learning rate."),
    ("grpo/loss", "win probability", "Loss, mean over optimizer steps."),
    *_by_term("grpo/logit_gradient", "win probability", "Norm of a weighted term's gradient in logits, root mean square over states."),
    *_by_term("grpo/logit_share", "fraction", "A term's fraction of the summed norms of all terms' logit gradients."),
    *_by_pair("grpo/logit_cosine", "Cosine of two weighted terms' descent directions in logits; near -1 the terms cancel."),
    *_by_phase("grpo/entropy", "nats", "Mean exact entropy at T = 1."),
    ("grpo/normalized_entropy", "fraction", "Mean of entropy / ln(legal moves) at T = 1."),
    ("grpo/log_num_legal", "nats", "Mean ln(legal moves), the upper bound of entropy."),
    ("grpo/kl_reference", "nats", "Mean KL(policy || reference) at the rollout's temperature, on the first minibatch."),
    ("grpo/kl_from_reference", "nats", "Mean KL(reference || policy), like `grpo/kl_reference`."),
    ("grpo/kl_old", "nats", "Mean KL(sampling policy || policy) on the last minibatch before its update; 0 with one optimizer step."),
    ("grpo/ratio_min", "factor", "Smallest probability ratio, new / sampled."),
    ("grpo/ratio_max", "factor", "Largest probability ratio, new / sampled."),
    ("grpo/clip_fraction", "fraction of moves", "Moves whose gradient a clip removed."),
    ("grpo/clip_low_fraction", "fraction of moves", "Moves whose gradient the lower clip removed."),
    ("grpo/clip_high_fraction", "fraction of moves", "Moves whose gradient the upper clip removed."),
    ("grpo/reward_mean", "win probability", "Mean reward of the sampled moves."),
    ("grpo/reward_gain", "win probability", "Expected value of the policy's move minus the reference's."),
    ("grpo/reward_std", "win probability", "Standard deviation of the sampled moves' rewards."),
    ("grpo/regret", "win probability", "Best value minus expected value at T = 1, by the reward's search."),
    ("grpo/zero_variance_groups", "fraction of groups", "Groups with equal rewards."),
    ("grpo/agreement", "fraction of moves", "Mean over groups: fraction of the most frequent move."),
    *_of_update("grpo"),
    ("grpo/states_dropped", "states", "Left out because the engine failed."),
    ("language/imitation_loss", "nats/token", "Mean cross-entropy of answer tokens since the last validation."),
    *_by_task("language/imitation_validation_loss", "nats/token", "Mean cross-entropy of answer tokens on other games' boards."),
    ("language/loss", "points", "Minimized loss, mean over tokens."),
    ("language/kl_term", "points", "Coefficient times a token's exact KL."),
    *_by_task("language/reward_mean", "points", "Mean graded reward of the answers, all parts at full weight."),
    ("language/reward_std", "points", "Standard deviation of the graded reward."),
    ("language/reward_trained", "points", "Mean reward used for training, with warm-up of some parts' weights."),
    *((f"language/reward/{part}", "points", f"Mean weighted part of the reward. {words}") for part, words in REWARD_PARTS.items()),
    *_by_task("language/parse_rate", "fraction of answers", "Answers in which every field can be parsed."),
    ("language/legal_rate", "fraction of answers", "Policy task: answers with a legal best move."),
    *_by_task("language/truncated", "fraction of answers", "Answers truncated at the maximum length; loss and group means leave them out."),
    *_by_task("language/answer_tokens", "tokens", "Mean length of an answer, end token included."),
    *_by_task("language/entropy", "nats", "Mean exact entropy of an answer at T = 1, summed over tokens."),
    ("language/token_entropy", "nats/token", "Mean exact entropy of a token at T = 1."),
    ("language/normalized_entropy", "fraction", "Token entropy / ln(size of the vocabulary)."),
    *_by_task("language/kl_reference", "nats", "Mean exact KL(policy || reference) of an answer, summed over tokens."),
    ("language/kl_max", "nats", "Largest KL(policy || reference) of an answer."),
    ("language/sampled_scored_gap", "nats", "Largest difference between a token's sampled and scored log-probability."),
    ("language/ratio_min", "factor", "Smallest probability ratio of a token."),
    ("language/ratio_max", "factor", "Largest probability ratio of a token."),
    ("language/clip_fraction", "fraction of tokens", "Tokens whose gradient a clip removed."),
    *_by_task("language/zero_variance_groups", "fraction of groups", "Groups with equal rewards."),
    *_by_task("language/agreement", "fraction of answers", "Mean over groups: fraction of the most frequent answer."),
    *_of_update("language"),
    ("self_play/games", "games", "Self-play games of the round."),
    ("self_play/dropped", "states", "Left out because the engine failed."),
    ("self_play/decisive", "fraction of games", "Ended in checkmate."),
    ("self_play/repeated", "fraction of games", "Ended by repetition."),
    *(
        (f"control/{name}", unit, meaning)
        for name, unit, meaning in (
            ("temperature", "factor", "Temperature of rollout and loss."),
            ("entropy_coefficient", "win probability/nat", "Entropy coefficient."),
            ("kl_coefficient", "win probability/nat", "Coefficient of KL(policy || reference)."),
            ("recovery_coefficient", "win probability/nat", "Coefficient of KL(reference || policy); 0 outside recoveries."),
            ("learning_rate", "factor", "Learning rate."),
            ("entropy_saturated", "fraction of steps", "Steps that left the entropy controller at a bound."),
            ("kl_saturated", "fraction of steps", "Steps that left the KL controller at a bound."),
            ("recoveries", "times", "Recoveries from critical entropy so far."),
        )
    ),
    *_by_phase("heldout/expected_value", "win probability", "Expected value at T = 1, by deeper search."),
    *_by_phase("heldout/regret_sampled", "win probability", "Best value minus expected value at T = 1, by deeper search."),
    *_by_phase("heldout/regret_best", "win probability", "Regret of the most likely move, by deeper search."),
    ("heldout/regret_best_stderr", "win probability", "Standard error of `heldout/regret_best`."),
    ("heldout/acpl", "centipawns", "Average centipawn loss of the most likely move."),
    ("heldout/accuracy", "percent", "Lichess's accuracy of the most likely move."),
    ("heldout/blunders", "fraction of boards", "The most likely move is a blunder by Lichess's rule."),
    *_by_phase("heldout/entropy", "nats", "Mean exact entropy at T = 1."),
    ("heldout/blunder_mass", "probability", "Mean probability at T = 1 of moves at least 0.10 below the best value."),
    ("heldout/reward", "points", "Language model: graded reward at T = 1 on validation boards."),
    ("heldout/parse_rate", "fraction of answers", "Language model: greedy answers that can be parsed."),
    ("heldout/legal_rate", "fraction of answers", "Language model: greedy answers with a legal best move."),
    ("heldout/legal_rate_unmasked", "fraction of answers", "Language model: the same without the mask of legal moves."),
    *(
        (f"time/{part}", "seconds", meaning)
        for part, meaning in (
            ("states", "States, including self-play and its move values."),
            ("rollout", "Sampling, and trajectories' replies and move values."),
            ("update", "Loss, gradient, optimizer."),
            ("other", "Everything else."),
        )
    ),
    *_with_interval("ladder/rating", "Elo", "Rating of a ladder opponent above the random mover; the MLflow step numbers the opponents."),
    *_with_interval("baseline/score_random", "score", "Pretrained policy (best moves) against a random mover; a win is 1, a draw 0.5."),
    *_with_interval("baseline/score_engine", "score", "Pretrained policy (best moves) against Stockfish at 1 node, by real results."),
    *_with_interval("baseline/rating", "Elo", "Pretrained policy (best moves) on the ladder, taken as exact: Elo above a random mover."),
    *_with_interval("selection/score_best", "score", "Confirmation games: candidate against pretrained policy, best moves."),
    *_with_interval("selection/verdict_elo", "Elo", "`selection/score_best` in Elo."),
    *_with_interval("selection/score_previous", "score", "Candidate against the registry's previous champion, best moves."),
    *_with_interval("selection/rating", "Elo", "Candidate on the ladder, taken as exact: Elo above a random mover."),
    *_with_interval("selection/rating_pretrained", "Elo", "Pretrained policy against the candidate's ladder opponents, same openings."),
    *_with_interval("selection/ladder_gain", "Elo", "Candidate's ladder rating minus the pretrained policy's."),
    ("selection/heldout_regret", "win probability", "`heldout/regret_best` of the candidate."),
    *_with_interval("selection/score_sampled", "score", "Candidate against pretrained policy, sampled moves at T = 1."),
)

METRICS: Final[Mapping[str, tuple[str, str]]] = {name: (unit, meaning) for name, unit, meaning in _ROWS}
assert len(METRICS) == len(_ROWS), "two metrics have one name"

ENDS: Final[Mapping[str, str]] = {
    BUDGET_SPENT: "the step budget was spent",
    ENTROPY_CRITICAL: "entropy was critical, and no recovery was configured or left",
}
"""Reason why training ended -> the reason in words."""

FINDING: Final = "finding"
EVENTS: Final[Mapping[str, str]] = {
    "entropy_critical": "Entropy is critical: recovery or stop.",
    "entropy_boost": "The schedule `field_notes` raised entropy coefficient and temperature, and halved the KL coefficient.",
    "recovery_started": "KL(reference || policy) joins the loss until entropy is healthy again.",
    "recovery_ended": "Entropy is healthy again.",
    "step_skipped": "A rollout, loss or gradient was not finite: no weight changed, and the learning rate was halved.",
    FINDING: "A new finding of the diagnosis (docs/troubleshooting.md).",
    "trust_region": "KL(sampling policy || policy) exceeded its limit: the rollout's other steps are left out.",
}
