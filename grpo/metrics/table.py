"""Metric definitions: name, unit and meaning of every metric and event; source of `docs/metrics.md`.

`grpo.metrics.records.Record` refuses names that are not in this table, so that a typo cannot start a second series.
"""

from collections.abc import Mapping
from typing import Final

from grpo.board.phases import PHASES
from grpo.metrics.shared import BUDGET_SPENT, ENTROPY_CRITICAL, TERM_PAIRS, TERMS, interval_names

_Row = tuple[str, str, str]
"""Name, unit and meaning of a metric."""


def _by_phase(name: str, unit: str, meaning: str) -> list[_Row]:
    return [(f"{name}/{phase}", unit, f"{meaning} {phase.capitalize()} boards only.") for phase in PHASES]


def _by_term(name: str, unit: str, meaning: str) -> list[_Row]:
    return [(f"{name}/{term}", unit, meaning) for term in TERMS]


TASKS: Final[Mapping[str, str]] = {"move": "policy", "environment": "environment"}
"""Tasks of a language model: name -> display name."""


def _by_task(name: str, unit: str, meaning: str) -> list[_Row]:
    """Return the metric over all answers, and the metric of each task."""
    parts = [(f"{name}/{task}", unit, f"{meaning} {words.capitalize()} task only.") for task, words in TASKS.items()]
    return [(name, unit, meaning), *parts]


REWARD_PARTS: Final[Mapping[str, str]] = {
    "structure": "Fraction of the sections that are present.",
    "parsing": "Fraction of the fields that can be parsed.",
    "move_quality": "Policy task: how good the listed moves are.",
    "evaluation": "Policy task: how accurate the evaluations are.",
    "best_move": "Policy task: how good the named best move is.",
    "similarity": "Environment task: how much of the new position is correct.",
    "outcome": "Environment task: correct reward and flags.",
}
"""Parts of a language model's graded reward -> meaning."""


def _with_interval(name: str, unit: str, meaning: str) -> list[_Row]:
    meanings = (meaning, *(f"{word} end of its 95 % interval." for word in ("Lower", "Upper")))
    return [(each, unit, its) for each, its in zip(interval_names(name), meanings, strict=True)]


def _by_pair(name: str, meaning: str) -> list[_Row]:
    return [(f"{name}/{one}_{other}", "factor", meaning) for one, other in TERM_PAIRS]


_ROWS: Final = (
    ("boards/rows", "boards", "Boards in the dataset."),
    ("checks/failed", "expectations", "Expectations about the dataset that do not hold."),
    ("imitation/train_loss", "nats", "Mean cross-entropy of the move played, since the last validation."),
    ("imitation/validation_loss", "nats", "Mean cross-entropy of the move played, on boards of other games; its lowest gives the weights."),
    ("imitation/top1", "fraction of boards", "How often the most likely move is the move played."),
    ("imitation/top5", "fraction of boards", "How often the move played is among the five most likely moves."),
    ("imitation/entropy", "nats", "Mean exact entropy of the policy at T = 1."),
    ("imitation/learning_rate", "factor", "Learning rate of the optimizer."),
    ("grpo/loss", "win probability", "The minimized loss; its level says little, see its terms below."),
    *_by_term("grpo/logit_gradient", "win probability", "Norm of the weighted term's gradient in logits, root mean square over states."),
    *_by_term("grpo/logit_share", "fraction", "The term's fraction of the sum of the norms of all terms' logit gradients."),
    *_by_pair("grpo/logit_cosine", "Cosine between two weighted terms' descent directions in logits; near -1 they cancel."),
    ("grpo/entropy", "nats", "Mean exact entropy at T = 1 of the policy that was sampled; at most ln(legal moves)."),
    *_by_phase("grpo/entropy", "nats", "Mean exact entropy at T = 1."),
    ("grpo/normalized_entropy", "fraction", "Mean of entropy / ln(legal moves) at T = 1."),
    ("grpo/log_num_legal", "nats", "Mean ln(legal moves): the upper bound of entropy."),
    ("grpo/kl_reference", "nats", "Mean exact KL(policy || reference) at the rollout's temperature, first minibatch, before its update."),
    ("grpo/kl_from_reference", "nats", "Mean exact KL(reference || policy), as `grpo/kl_reference`."),
    ("grpo/kl_old", "nats", "Mean exact KL(old || policy) on the last minibatch, before its update: 0 with one optimizer step a rollout."),
    ("grpo/ratio_min", "factor", "Smallest probability ratio of the step."),
    ("grpo/ratio_max", "factor", "Largest probability ratio of the step."),
    ("grpo/clip_fraction", "fraction of moves", "Moves without gradient because of either clip."),
    ("grpo/clip_low_fraction", "fraction of moves", "Moves without gradient because of the lower clip."),
    ("grpo/clip_high_fraction", "fraction of moves", "Moves without gradient because of the upper clip."),
    ("grpo/optimizer_steps", "steps", "Optimizer steps of this rollout: steps since the old policy was synced."),
    ("grpo/reward_mean", "win probability", "Mean reward of the sampled moves, on training states."),
    ("grpo/reward_gain", "win probability", "Expected value of the policy's move less the reference's, over all legal moves."),
    ("grpo/reward_std", "win probability", "Standard deviation of the rewards of all sampled moves of the step."),
    ("grpo/regret", "win probability", "Best value minus the policy's expected value at T = 1, training states, the reward's search."),
    ("grpo/zero_variance_groups", "fraction of groups", "Zero-variance groups: all rewards are equal, so that all advantages are 0."),
    ("grpo/agreement", "fraction of moves", "Mean fraction of a group that its most frequent move makes up."),
    ("grpo/gradient_norm", "factor", "Euclidean norm of the gradient before clipping, mean over the step."),
    ("grpo/skipped", "steps", "Optimizer steps of this rollout that were skipped because of NaN or infinity."),
    ("grpo/states_dropped", "states", "States that the engine failed to value, and trajectories in which it failed to reply."),
    ("language/clone_loss", "nats/token", "Cloning: mean cross-entropy of the answers' tokens, since the last validation."),
    *_by_task("language/clone_validation_loss", "nats/token", "Cloning: mean cross-entropy of answers' tokens, boards of other games."),
    ("language/loss", "points", "The loss: policy, entropy and KL terms, mean over tokens; its level says little."),
    ("language/kl_term", "points", "The KL term in the loss: coefficient times the exact KL of a token's distribution."),
    *_by_task("language/reward_mean", "points", "Mean graded reward of the step's answers, all parts at full weight."),
    ("language/reward_std", "points", "Standard deviation of the graded reward over all answers."),
    ("language/reward_trained", "points", "Mean of the reward used for training, including the warm-up of its parts."),
    *(
        (f"language/reward/{part}", "points", f"Mean of one part of the reward, times its weight. {words}")
        for part, words in REWARD_PARTS.items()
    ),
    *_by_task("language/parse_rate", "fraction of answers", "Answers in which every field can be parsed."),
    ("language/legal_rate", "fraction of answers", "Answers of the policy task with a legal best move."),
    *_by_task("language/truncated", "fraction of answers", "Answers truncated at the maximum length: loss and group means leave them out."),
    *_by_task("language/answer_tokens", "tokens", "Mean length of an answer, its end included."),
    *_by_task("language/entropy", "nats", "Entropy of an answer at T = 1: exact at each token, summed along sampled answers."),
    ("language/token_entropy", "nats/token", "Mean exact entropy of a token's distribution at T = 1."),
    ("language/normalized_entropy", "fraction", "Token entropy over ln(size of the vocabulary)."),
    *_by_task("language/kl_reference", "nats", "KL(policy || reference) of an answer: exact at each token, summed along it."),
    ("language/kl_max", "nats", "The largest KL(policy || reference) of an answer."),
    ("language/sampled_scored_gap", "nats", "Largest difference between a token's log-probability when sampled and when scored."),
    ("language/ratio_min", "factor", "Smallest probability ratio of a token in the step."),
    ("language/ratio_max", "factor", "Largest probability ratio of a token in the step."),
    ("language/clip_fraction", "fraction of tokens", "Tokens without gradient because of either clip."),
    *_by_task("language/zero_variance_groups", "fraction of groups", "Groups of equal rewards, so that all advantages are 0."),
    *_by_task("language/agreement", "fraction of answers", "Mean fraction of a group that its most frequent answer makes up."),
    ("language/gradient_norm", "factor", "Euclidean norm of the gradient before clipping, mean over the step."),
    ("language/skipped", "steps", "Optimizer steps of this rollout that were skipped because of NaN or infinity."),
    ("language/optimizer_steps", "steps", "Optimizer steps of this rollout."),
    ("self_play/games", "games", "Self-play games of this round."),
    ("self_play/dropped", "states", "Positions dropped because the engine failed to value them."),
    ("self_play/decisive", "fraction of games", "Self-play games that ended in checkmate."),
    ("self_play/repeated", "fraction of games", "Self-play games that ended by repetition."),
    *(
        (f"control/{name}", unit, meaning)
        for name, unit, meaning in (
            ("temperature", "factor", "Temperature of the rollout and its loss."),
            ("entropy_coefficient", "win probability/nat", "Entropy coefficient at this step."),
            ("kl_coefficient", "win probability/nat", "Coefficient of the reference KL at this step."),
            ("recovery_coefficient", "win probability/nat", "Coefficient of KL(reference || policy) during a recovery, else 0."),
            ("learning_rate", "factor", "Learning rate of the optimizer at this step."),
            ("entropy_saturated", "fraction of steps", "Fraction of the run's steps after which the entropy controller was at a bound."),
            ("kl_saturated", "fraction of steps", "Fraction of the run's steps after which the KL controller was at a bound."),
            ("recoveries", "times", "Recoveries from critical entropy so far."),
        )
    ),
    ("heldout/expected_value", "win probability", "Expected value at T = 1, held-out boards, stronger search."),
    *_by_phase("heldout/expected_value", "win probability", "Expected value at T = 1, stronger search."),
    ("heldout/regret_sampled", "win probability", "Best value minus expected value at T = 1, held-out boards, stronger search."),
    *_by_phase("heldout/regret_sampled", "win probability", "Best value minus expected value at T = 1, stronger search."),
    ("heldout/regret_best", "win probability", "Best value minus value of the most likely move, held-out boards, stronger search."),
    ("heldout/regret_best_stderr", "win probability", "Standard error of `heldout/regret_best`."),
    *_by_phase("heldout/regret_best", "win probability", "Best value minus value of the most likely move, stronger search."),
    ("heldout/entropy", "nats", "Mean exact entropy at T = 1 on held-out boards."),
    *_by_phase("heldout/entropy", "nats", "Mean exact entropy at T = 1."),
    ("heldout/blunder_mass", "probability", "Mean probability at T = 1 of moves whose value is at least 0.10 below the best."),
    ("heldout/reward", "points", "Language model: graded reward of answers sampled at T = 1 on validation boards."),
    ("heldout/parse_rate", "fraction of answers", "Language model: greedy answers in which every field can be parsed."),
    ("heldout/legal_rate", "fraction of answers", "Language model: greedy answers with a legal best move."),
    *(
        (f"time/{part}", "seconds", meaning)
        for part, meaning in (
            ("states", "GRPO step: selecting states, including self-play and its values."),
            ("rollout", "GRPO step: forward passes of sampling, and trajectories with opponents' replies and values."),
            ("update", "GRPO step: forward and backward passes of the loss, and the optimizer."),
            ("other", "GRPO step: measurements and everything else."),
        )
    ),
    *_with_interval("ladder/rating", "Elo", "Rating of a rung above the random mover; the MLflow step is the rung's number."),
    *_with_interval("baseline/score_random", "score", "Pretrained policy (best moves) against a random mover; a win is 1, a draw 0.5."),
    *_with_interval("baseline/score_engine", "score", "Pretrained policy (best moves) against Stockfish with one node a move, as played."),
    *_with_interval("baseline/rating", "Elo", "Pretrained policy (best moves) on the ladder before GRPO: Elo above a random mover."),
    *_with_interval("selection/score_best", "score", "Confirmation games: candidate against pretrained policy, best moves."),
    *_with_interval("selection/verdict_elo", "Elo", "`selection/score_best` in Elo: what the verdict's sentence and the run's name state."),
    *_with_interval("selection/score_previous", "score", "Candidate against the registry's previous champion, best moves."),
    *_with_interval("selection/rating", "Elo", "The candidate on the ladder: Elo above a random mover."),
    *_with_interval("selection/rating_pretrained", "Elo", "The pretrained policy on the ladder, on the candidate's rungs and openings."),
    *_with_interval("selection/ladder_gain", "Elo", "Candidate's ladder rating less the pretrained policy's: same rungs and openings."),
    ("selection/heldout_regret", "win probability", "`heldout/regret_best` of the candidate."),
    *_with_interval("selection/score_sampled", "score", "Candidate against pretrained policy, sampled moves at T = 1."),
)

METRICS: Final[Mapping[str, tuple[str, str]]] = {name: (unit, meaning) for name, unit, meaning in _ROWS}
"""Every metric: name -> unit and meaning."""
assert len(METRICS) == len(_ROWS), "two metrics have one name"

ENDS: Final[Mapping[str, str]] = {
    BUDGET_SPENT: "the step budget was spent",
    ENTROPY_CRITICAL: "entropy was critical, and no recovery was configured or left",
}
"""Why training ended, in the report of `finetune` -> the same in words."""

FINDING: Final = "finding"
EVENTS: Final[Mapping[str, str]] = {
    "entropy_critical": "Entropy is critical: recovery or stop.",
    "entropy_boost": "The field notes' recovery raised the entropy coefficient and temperature and lowered the KL coefficient.",
    "recovery_started": "KL(reference || policy) joins the loss until entropy is healthy again.",
    "recovery_ended": "Entropy is healthy again.",
    "step_skipped": "A loss or gradient was NaN or infinite: the step was skipped, and the learning rate is cut from the next rollout on.",
    FINDING: "The diagnosis of the run has a new finding; docs/troubleshooting.md explains each.",
    "trust_region": "Optimizer steps of a rollout ended early, because KL(old || policy) reached its limit.",
}
"""Every event: name -> meaning."""
