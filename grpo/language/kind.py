"""The three functions that every kind of policy has (`grpo.settings.kinds`), for language models."""

from collections.abc import Callable
from pathlib import Path

import chess
import numpy as np
import torch

from grpo.base.files import file_hashes, sha256_json
from grpo.language.model.loading import LanguageModelError, hub_commit
from grpo.settings.language import SMALL, model_folder
from grpo.settings.tree import Settings


def check(settings: Settings) -> str:
    """Return the initial model's source as text. Raises LanguageModelError if `language.model` is a folder without `config.json`."""
    model = settings.language.model
    folder = model_folder(model)
    if folder is None:
        return "small, built in" if model == SMALL else f"{model} of the hub, downloaded by `pretrain` unless it is cached"
    if not (folder / "config.json").is_file():
        fault = "has no config.json" if folder.is_dir() else "is not an existing folder"
        remedy = "give a folder that transformers' `save_pretrained` wrote, the name of a model on the hub, or small"
        raise LanguageModelError(f"language.model = {model!r} {fault}; {remedy}")
    return f"the folder {folder}"


def start_hashes(settings: Settings) -> dict[str, str]:
    """Return {"model": hash}: a hash of the folder's files, or the model's commit on the hub.

    The dict is empty for `small`, which the settings determine. Raises LanguageModelError if neither hub nor cache has the model.
    """
    model = settings.language.model
    if model == SMALL:
        return {}
    folder = model_folder(model)
    return {"model": hub_commit(settings.language) if folder is None else sha256_json(file_hashes(folder))}


def load_ranker(folder: Path, device: torch.device) -> Callable[[chess.Board], tuple[list[str], list[float]]]:
    """Return a function: board -> ([move in UCI], []).

    The first list is empty if no answer names a legal move. The first answer is greedy; retries are sampled with a fixed seed.
    """
    from grpo.language.generate.player import AnswerGenerator, moves_with_retries
    from grpo.language.model.policy import LanguagePolicy

    policy = LanguagePolicy.load(folder, device)
    generator = AnswerGenerator(policy, policy.config)

    def ranked(board: chess.Board) -> tuple[list[str], list[float]]:
        [reply] = moves_with_retries(generator, [board], temperature=None, streams=[np.random.default_rng(0)])
        return ([] if reply.move is None else [reply.move.uci()]), []

    return ranked
