"""Stand-ins for language models: who answers prompts as a function says, and what they were asked."""

from collections.abc import Callable, Sequence

import numpy as np

from grpo.language.text.tasks import write_move_answer
from grpo.settings.language import LanguageConfig

Answer = Callable[[str, float | None], str]
"""FEN, and a number in [0, 1) drawn from the prompt's stream, None for the best answer -> the answer."""


def naming(move: str) -> str:
    return write_move_answer([move] * 5, [0.0] * 5, move)


class ScriptedSpeaker:
    """Answers as a function of the position says, and remembers every batch of questions."""

    def __init__(self, answer: Answer, **config: int) -> None:
        self.config = LanguageConfig.model_validate(config)
        self._answer = answer
        self.asked: list[tuple[float | None, int]] = []
        """Temperature (None for best answers) and number of prompts of each call."""

    def greedy(self, prompts: Sequence[str], choices: Sequence[tuple[str, ...]] | None = None) -> list[str]:
        self.asked.append((None, len(prompts)))
        return [self._answer(_fen(prompt), None) for prompt in prompts]

    def unmasked(self, prompts: Sequence[str]) -> list[str]:
        return [self._answer(_fen(prompt), None) for prompt in prompts]

    def sampled(
        self,
        prompts: Sequence[str],
        choices: Sequence[tuple[str, ...]] | None = None,
        *,
        temperature: float,
        streams: Sequence[np.random.Generator],
    ) -> list[str]:
        """Return answers that take one number each from their streams."""
        assert len({id(stream) for stream in streams}) == len(prompts), "each prompt has a stream of its own"
        self.asked.append((temperature, len(prompts)))
        return [self._answer(_fen(prompt), float(stream.random())) for prompt, stream in zip(prompts, streams, strict=True)]


def _fen(prompt: str) -> str:
    assert prompt.startswith("P: ")
    assert prompt.endswith("    M:")
    return prompt[3:-6]
