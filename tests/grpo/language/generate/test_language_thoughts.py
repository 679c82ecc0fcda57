"""A thought is written freely, ends by its label or by its budget, and leaves the answer behind it as it would be."""

from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from made_models import byte_pair_tokenizer, gpt2, llama
from written_language import settings, writer

from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import GeneratedAnswer, TooLongError, greedy_answers, sampled_answers
from grpo.language.generate.generator import PolicyAnswerGenerator
from grpo.language.generate.retries import moves_with_retries, named_move
from grpo.language.generate.thoughts import Draft, ThoughtError, prompt_tokens
from grpo.language.model.loading import load_model
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.tasks import ANSWER_LABEL, environment_prompt, move_prompt
from grpo.settings.language import LanguageConfig

FENS = ["rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "8/8/8/8/8/8/k1K5/8 b - - 12 90"]
MOVES = [move_prompt(fen) for fen in FENS]
ENVIRONMENT = [environment_prompt(fen, "e2e4", ["e2e4"]) for fen in FENS]
BUDGET = 4


def thinker(budget: int = BUDGET) -> LanguagePolicy:
    """Return a policy of random words that ends a thought with some chance at each token."""
    policy = writer(settings(**{"language.think_tokens": budget}))
    (label,) = policy.tokens([ANSWER_LABEL])[0]
    with torch.no_grad():
        policy.network.lm_head.weight[label] += (float(np.log(3)) + 6) / 32
    return policy


def streams(count: int) -> list[np.random.Generator]:
    return [numpy_stream(3, "thoughts", index) for index in range(count)]


def written(policy: LanguagePolicy, prompts: list[str]) -> list[GeneratedAnswer]:
    return sampled_answers(policy, prompts, temperature=1.0, streams=streams(len(prompts)))


def test_a_thought_ends_with_its_label_or_its_budget_or_everything_and_the_answers_budget_is_its_own() -> None:
    policy = thinker()
    label = tuple(policy.tokens([ANSWER_LABEL])[0])
    kinds = set()
    for answer in written(policy, MOVES * 60):
        num = answer.num_thought
        assert num is not None
        assert not any(answer.is_forced[:num])
        assert not any(answer.is_forced[num + 1 :])
        assert answer.thought == policy.tokenizer.decode(answer.token_ids[:num])
        assert label[0] not in answer.token_ids[:num]
        if answer.token_ids[num] == policy.end_id:
            kinds.add("ended")
            assert (answer.text, answer.num_tokens, answer.is_truncated) == ("", 1, False)
            continue
        assert answer.token_ids[num : num + 1] == label
        assert answer.is_forced[num] == (num == BUDGET)
        kinds |= {"forced" if answer.is_forced[num] else "closed", *(["at once"] if num == 0 else [])}
        assert answer.num_tokens == len(answer.token_ids) - num - 1 <= 16
        assert answer.is_truncated == (answer.num_tokens == 16 and answer.token_ids[-1] != policy.end_id)
        kinds |= {"truncated behind a full thought"} if answer.is_truncated and num == BUDGET else set()
        assert answer.text == policy.tokenizer.decode([token for token in answer.token_ids[num + 1 :] if token != policy.end_id])
    assert kinds == {"ended", "forced", "closed", "at once", "truncated behind a full thought"}


def test_an_environment_prompt_has_no_thought_and_its_answers_are_those_of_a_policy_that_never_thinks() -> None:
    found = written(thinker(), ENVIRONMENT)
    assert found == written(thinker(0), ENVIRONMENT)
    assert [answer.num_thought for answer in found] == [None, None]


def test_a_stream_gives_one_number_for_each_sampled_token_and_none_for_a_forced_one() -> None:
    policy, used = thinker(), streams(40)
    answers = sampled_answers(policy, MOVES * 20, temperature=1.0, streams=used)
    assert any(any(answer.is_forced) for answer in answers)
    for answer, stream, fresh in zip(answers, used, streams(40), strict=True):
        num_sampled = len(answer.token_ids) - sum(answer.is_forced)
        assert len(answer.log_probs) == num_sampled
        fresh.random(num_sampled)
        assert stream.random() == fresh.random()


def test_games_play_what_the_answer_behind_the_thought_names() -> None:
    policy, boards = thinker(), [chess.Board()] * 60
    generator = PolicyAnswerGenerator(policy, policy.config.model_copy(update={"max_questions": 1}))
    replies = moves_with_retries(generator, boards, temperature=1.0, streams=streams(60))
    answers = written(policy, [MOVES[0]] * 60)
    assert [reply.move for reply in replies] == [named_move(boards[0], answer.text).move for answer in answers]
    assert any(reply.move and answer.num_thought for reply, answer in zip(replies, answers, strict=True))


def policy_of(folder: Path, **changes: int) -> LanguagePolicy:
    given: dict[str, Any] = {"max_answer_tokens": 16, "think_tokens": 6, **changes}
    return load_model(LanguageConfig(model=str(folder), **given), seed=0, device=torch.device("cpu"))


@pytest.mark.parametrize("make", [gpt2, llama], ids=["absolute", "rotary"])
def test_with_a_label_of_several_tokens_an_answer_does_not_depend_on_what_is_asked_with_it(make, tmp_path: Path) -> None:
    folder = make(tmp_path, byte_pair_tokenizer())
    policy, prompts = policy_of(folder), [*MOVES, *ENVIRONMENT, "P: 8/5k2    M:"]
    together = written(policy, prompts)
    alone = [
        sampled_answers(policy, [prompt], temperature=1.0, streams=[stream])[0] for prompt, stream in zip(prompts, streams(5), strict=True)
    ]
    assert together == alone
    label = prompt_tokens(policy, prompts)[0].label
    assert len(label) > 1
    assert policy.tokenizer.decode(label) == ANSWER_LABEL
    assert {sum(answer.is_forced) for answer in together} == {0, len(label)}
    assert PolicyAnswerGenerator(policy, policy.config).greedy(prompts) == [answer.text for answer in greedy_answers(policy, prompts)]


@pytest.mark.parametrize(
    ("tokens", "num_thought", "forced"),
    [
        ([7, 8, 9], 0, []),
        ([7, 7, 8, 9], 1, []),
        ([5, 5, 5, 7, 8], 3, [9]),  # The label was under way when the budget was spent.
        ([5, 5, 5, 5, 5], 5, [7, 8, 9]),
        ([7, 8, 7, 8, 5], 5, [7, 8, 9]),
    ],
)
def test_what_is_missing_of_the_label_is_forced_when_the_budget_is_spent(tokens: list[int], num_thought: int, forced: list[int]) -> None:
    draft = Draft(thinker(5), [7, 8, 9])
    for token in tokens:
        assert draft.forced is None
        assert draft.write(token, -1.0)
    for token in forced:
        assert draft.forced == token
        assert draft.write(token, -9.0)
    assert (draft.num_thought, draft.answer_start, draft.forced) == (num_thought, num_thought + 3, None)
    assert draft.is_forced == [False] * len(tokens) + [True] * len(forced)
    assert draft.log_probs == [-1.0] * len(tokens)


def test_a_thought_for_which_the_model_has_no_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    policy = policy_of(gpt2(tmp_path), think_tokens=250)
    with pytest.raises(
        TooLongError, match=r"tokens, a thought of language\.think_tokens = 250 and an answer .* 256: lower language\.think"
    ):
        greedy_answers(policy, ["P: 8/5k2    M:"])
    assert greedy_answers(policy, ["A: 8/5k2+e2e4+"])[0].num_thought is None


def test_a_tokenizer_that_joins_the_label_with_the_text_before_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = thinker()
    monkeypatch.setattr(policy, "tokens", lambda texts: [[len(text)] for text in texts])
    with pytest.raises(ThoughtError, match=r"language\.think_tokens: the tokenizer of 'test' joins '    M:' with the text before it"):
        greedy_answers(policy, MOVES)
