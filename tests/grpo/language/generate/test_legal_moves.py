"""Answers name legal moves only, from one distribution that sampling, scoring and playing share."""

import math
from pathlib import Path

import chess
import pytest
import torch
from doubles import some_boards
from made_language import TERMINAL_FENS
from made_models import NO_DROPOUT, byte_pair_tokenizer, gpt2, gpt2_network

from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import greedy_answers, sampled_answers
from grpo.language.generate.legal_moves import MoveMask, move_masks, token_choices
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import exact_measures
from grpo.language.model.policy import LanguagePolicy, ModelOrigin, load_model, token_distribution
from grpo.language.text.tasks import environment_prompt, move_prompt, read_move_answer, write_move_answer
from grpo.language.text.tokenizer import ChessTokenizer
from grpo.settings.language import LanguageConfig

CPU = torch.device("cpu")
TWO_MOVES = "8/8/8/8/8/8/k1K5/8 b - - 12 90"  # a2a1 and a2a3.
FENS = (*TERMINAL_FENS, chess.STARTING_FEN, *(board.fen() for board in some_boards(12, max_plies=60)))


def small(*, seed: int = 0, **config: bool) -> LanguagePolicy:
    """Return random weights, large enough that distributions are far from even."""
    torch.manual_seed(seed)
    network = gpt2_network(len(tokenizer := ChessTokenizer()), **NO_DROPOUT)
    return LanguagePolicy(network, tokenizer, CPU, LanguageConfig.model_validate(config), origin=ModelOrigin(model="test", commit=""))


def byte_pairs(folder: Path) -> LanguagePolicy:
    """Return a model whose moves and labels have several tokens each."""
    config = LanguageConfig(model=str(gpt2(folder, byte_pair_tokenizer())), max_answer_tokens=100)
    return load_model(config, seed=0, device=CPU)


def test_probability_entropy_and_divergence_under_a_mask_by_hand() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0, 3.0]]).log()
    policy = small()
    choices = token_choices([{2: {}, 0: {}}], policy)
    assert choices is not None
    ours, reference = (token_distribution(each, choices, temperature=1.0) for each in (logits, torch.zeros(1, 4)))
    assert choices.ids.tolist() == [[0, 2]]
    assert ours.log_probs[0].tolist() == pytest.approx([math.log(1 / 3), math.log(2 / 3)])
    assert ours.entropy().item() == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    assert ours.kl_to(reference).item() == pytest.approx(1 / 3 * math.log(2 / 3) + 2 / 3 * math.log(4 / 3))
    assert choices.columns(torch.tensor([2])).tolist() == [1]
    assert token_choices([None], policy) is None


def test_rows_with_and_without_a_mask_share_a_batch() -> None:
    policy = small()
    choices = token_choices([None, {3: {}}, {5: {}, 0: {}}], policy)
    assert choices is not None
    assert choices.is_allowed.sum(1).tolist() == [policy.vocabulary, 1, 2]
    assert choices.columns(torch.tensor([7, 3, 5])).tolist() == [7, 0, 1]
    logits = torch.randn(3, policy.vocabulary)
    found = token_distribution(logits, choices, temperature=2.0)
    torch.testing.assert_close(found.log_probs[0], (logits[0] / 2).log_softmax(0))
    torch.testing.assert_close(found.probs[2, :2], (logits[2, [0, 5]] / 2).softmax(0))
    assert found.probs[1].tolist() == [1.0] + [0.0] * (policy.vocabulary - 1)


def test_an_answer_is_scored_over_the_legal_moves_alone() -> None:
    """The king has two moves, so an answer is one choice between two tokens, and a certain end."""
    policy, reference = small(seed=0), small(seed=1)
    prompt = move_prompt(TWO_MOVES, lists_moves=False)
    [prompt_ids], [best, other] = policy.tokens([prompt]), policy.tokens([" a2a1", " a2a3"])
    assert len(best) == len(other) == 1
    batch = AnswerBatch.of(policy, [prompt_ids] * 2, [[*best, policy.end_id], [*other, policy.end_id]], move_masks(policy, [prompt] * 2))
    measures = exact_measures(policy, reference, batch, temperature=1.0)
    with torch.no_grad():
        logits = [model.network(torch.tensor([prompt_ids])).logits[0, -1] for model in (policy, reference)]
    p, q = ([first, 1 - first] for first in (1 / (1 + math.exp(each[other[0]] - each[best[0]])) for each in logits))
    entropies, divergences = measures.of_answers()
    assert measures.log_probs.sum(1).tolist() == pytest.approx([math.log(each) for each in p], abs=1e-4)
    assert entropies.tolist() == pytest.approx([-sum(each * math.log(each) for each in p)] * 2, abs=1e-4)
    assert divergences.tolist() == pytest.approx([sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))] * 2, abs=1e-4)
    assert measures.log_probs[:, 1].abs().max() == 0, "the end is certain"


@pytest.mark.parametrize("lists_moves", [True, False])
@pytest.mark.parametrize("has_byte_pairs", [True, False])
def test_every_named_move_is_legal_whatever_the_weights(lists_moves: bool, has_byte_pairs: bool, tmp_path: Path) -> None:
    policy = byte_pairs(tmp_path) if has_byte_pairs else small()
    prompts = [move_prompt(fen, lists_moves=lists_moves) for fen in FENS for _ in range(3)]
    streams = [numpy_stream(0, number) for number in range(len(prompts))]
    for answers in (sampled_answers(policy, prompts, temperature=1.0, streams=streams), greedy_answers(policy, prompts)):
        for index, answer in enumerate(answers):
            legal = {move.uci() for move in chess.Board(FENS[index // 3]).legal_moves}
            if lists_moves:
                listed = answer.text.partition("    E:")[0].split()
                assert 1 <= len(listed) <= min(5, len(legal))
                assert set(listed) <= legal
            else:
                read = read_move_answer(answer.text, lists_moves=False)
                assert read.is_readable
                assert read.best in legal
                assert not answer.is_truncated


def test_after_the_label_of_section_b_one_legal_move_follows_and_the_end(tmp_path: Path) -> None:
    for policy in (small(), byte_pairs(tmp_path)):
        mask = MoveMask(policy, ["a2a1", "a2a3"], lists_moves=True)
        start, end, illegal = (
            policy.tokens([write_move_answer(["a2a1", "a2a3"], [0.0, -1.2], best)])[0] for best in ("a2a1", "a2a3", "a2b3")
        )
        for answer in (start, end):
            states = mask.states([*answer, policy.end_id])
            assert all(state is None or token in state for state, token in zip(states, [*answer, policy.end_id], strict=True))
            assert states[-1] is not None
            assert set(states[-1]) == {policy.end_id}
        with pytest.raises(KeyError):
            mask.states([*illegal, policy.end_id])


@pytest.mark.parametrize("gap", ["", " ", " " * 12])
def test_section_b_is_masked_however_many_blanks_are_before_its_label(gap: str, tmp_path: Path) -> None:
    """RookWorld's data pads section E to 40 characters."""
    for policy in (small(), byte_pairs(tmp_path)):
        mask = MoveMask(policy, ["a2a1", "a2a3"], lists_moves=True)
        legal, illegal = policy.tokens([f" a2a1 a2a3    E: 0.0 -1.2{gap}B: {best}" for best in ("a2a3", "a2b3")])
        assert mask.states([*legal, policy.end_id])[-1] == {policy.end_id: {}}
        with pytest.raises(KeyError):
            mask.states([*illegal, policy.end_id])


@pytest.mark.parametrize("lists_moves", [True, False])
def test_a_mask_of_given_choices_allows_these_moves_alone(lists_moves: bool) -> None:
    policy, prompt = small(), move_prompt(chess.STARTING_FEN, lists_moves=lists_moves)
    choices = [("g1f3", "e2e4"), ("a2a3",)] * 5
    answers = sampled_answers(policy, [prompt] * 10, choices, temperature=1.0, streams=[numpy_stream(0, number) for number in range(10)])
    first_moves = [{answer.text.split()[0] for answer in answers[index::2]} for index in range(2)]
    assert first_moves == [{"g1f3", "e2e4"}, {"a2a3"}]
    assert [answer.mask is answers[index % 2].mask for index, answer in enumerate(answers)] == [True] * 10


def test_a_policy_without_legal_moves_and_an_environment_prompt_have_no_mask() -> None:
    prompts = [move_prompt(TWO_MOVES), environment_prompt(TWO_MOVES, "a2a1", ["a2a1"])]
    assert move_masks(small(legal_moves=False), prompts) == [None, None]
    [move, environment] = move_masks(small(), prompts)
    assert (move is None, environment) == (False, None)
    unmasked = small().with_legal_moves(False)
    answers = sampled_answers(unmasked, [prompts[0]] * 20, temperature=1.0, streams=[numpy_stream(0, number) for number in range(20)])
    assert any(not answer.text.startswith(" a2a") for answer in answers)


@pytest.mark.parametrize("formats", [(True, False), (False,)])
def test_a_tokens_log_probability_is_the_one_it_was_sampled_with(formats: tuple[bool, ...]) -> None:
    """The end of a best move alone is certain, and is not read."""
    policy = small()
    prompts = [move_prompt(fen, lists_moves=lists_moves) for fen in FENS for lists_moves in formats]
    streams = [numpy_stream(0, number) for number in range(len(prompts))]
    answers = sampled_answers(policy, prompts, temperature=0.7, streams=streams)
    ids = [answer.token_ids for answer in answers]
    batch = AnswerBatch.of(policy, [answer.prompt_ids for answer in answers], ids, move_masks(policy, prompts))
    scored = exact_measures(policy, policy, batch, temperature=0.7).log_probs[batch.is_token]
    sampled = torch.tensor([log_prob for answer in answers for log_prob in answer.log_probs])
    torch.testing.assert_close(scored, sampled, atol=1e-4, rtol=0)
    wrong = AnswerBatch.of(policy, [answer.prompt_ids for answer in answers], ids)
    assert (exact_measures(policy, policy, wrong, temperature=0.7).log_probs[batch.is_token] - sampled).abs().max() > 0.1
