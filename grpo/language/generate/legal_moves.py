"""Masks: the tokens that an answer may have next, so the answer's moves are legal.

The prompt, the moves to choose from, and the tokens written so far determine the allowed tokens. So sampling, scoring and playing share one
distribution. Allowed tokens:

- Section M (moves): a move; after the first move, also section E's label; after `NUM_MOVES` (or all legal) moves, only this label.
- Section E (evaluations), and answers of the environment task (predict a position): every token.
- Section B (best move): one move, then the end token.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import chess
import torch

from grpo.language.model.policy import LanguagePolicy, TokenChoices
from grpo.language.text.tasks import LABEL_BEST, LABEL_EVALUATIONS, NUM_MOVES, read_move_prompt

# Allowed token -> state after the token; None allows every token.
State: TypeAlias = Mapping[int, Any] | None
_FREE: Final = None


class MoveMask:
    """The mask of the answers to one prompt. Each token of an answer leads from one state to the next."""

    def __init__(self, policy: LanguagePolicy, named: Sequence[str], *, lists_moves: bool) -> None:
        """`named`: moves (UCI) that an answer may name. `lists_moves`: whether answers begin with section M, not B."""
        moves = policy.tokens(f" {move}" for move in named)
        [label] = policy.tokens([LABEL_EVALUATIONS])
        self._text = policy.text_of_few
        end: State = {policy.end_id: {}}
        self._best = _trie((move, end) for move in moves)
        self.start: State = self._best
        if lists_moves:
            self.start = _trie([(label, _FREE)])
            # From the last move's state back to the first move's.
            for number in range(min(NUM_MOVES, len(moves)), 0, -1):
                labels = [(label, _FREE)] if number > 1 else []
                self.start = _trie([*((move, self.start) for move in moves), *labels])

    def after(self, state: State, written: Sequence[int]) -> State:
        """Return the state after the last token of `written`; `state` is the state before this token."""
        if state is not _FREE:
            return state[written[-1]]  # type: ignore[no-any-return]
        # RookWorld's models write any number of blanks before the label, which has two tokens at most.
        return self._best if self._text(tuple(written[-2:])).endswith(LABEL_BEST.strip()) else _FREE

    def states(self, answer: Sequence[int]) -> list[State]:
        """Return the state before each token of an answer."""
        states = [self.start]
        for length in range(1, len(answer)):
            states.append(self.after(states[-1], answer[:length]))
        return states


def move_masks(policy: LanguagePolicy, prompts: Sequence[str], choices: Sequence[tuple[str, ...]] | None = None) -> list[MoveMask | None]:
    """Return each prompt's mask; equal prompts with equal choices share one object.

    `choices` are the moves (UCI) of each prompt, all legal ones by default. A mask is None without `language.legal_moves`, and for the
    environment task.
    """
    choices_of_prompts: Sequence[tuple[str, ...] | None] = [None] * len(prompts) if choices is None else choices
    keys = [*zip(prompts, choices_of_prompts, strict=True)]
    masks: dict[Hashable, MoveMask | None] = {}
    for prompt, moves in dict.fromkeys(keys):
        position = read_move_prompt(prompt) if policy.config.legal_moves else None
        if position is None:
            masks[prompt, moves] = None
        else:
            legal = [move.uci() for move in chess.Board(position[0]).legal_moves] if moves is None else moves
            masks[prompt, moves] = MoveMask(policy, legal, lists_moves=position[1])
    return [masks[key] for key in keys]


def token_choices(states: Sequence[State], policy: LanguagePolicy) -> TokenChoices | None:
    """Return the tokens that each state allows, in ascending order; None if all states allow every token."""
    if all(state is _FREE for state in states):
        return None
    distinct = {id(state): state for state in states}  # Answers to one prompt share state objects.
    lists = [torch.arange(policy.vocabulary) if state is _FREE else torch.tensor(sorted(state)) for state in distinct.values()]
    row_of = {key: row for row, key in enumerate(distinct)}
    rows = torch.tensor([row_of[id(state)] for state in states])
    ids = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)[rows]
    is_allowed = torch.arange(ids.shape[1]) < torch.tensor([len(allowed) for allowed in lists])[rows, None]
    return TokenChoices(ids=ids.to(policy.device), is_allowed=is_allowed.to(policy.device))


def _trie(words: Iterable[tuple[Sequence[int], State]]) -> dict[int, Any]:
    """Return the state that allows one of `words`, pairs of tokens and the state after the word. No word begins another word."""
    root: dict[int, Any] = {}
    for tokens, after in words:
        node = root
        for token in tokens[:-1]:
            node = node.setdefault(token, {})
        node[tokens[-1]] = after
    return root
