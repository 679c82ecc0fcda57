"""The frozen tree of all settings of a run. Unknown keys and impossible values are refused with a suggestion.

Each default is defined here and nowhere else; together they are the preset `laptop`. A preset, like a user's settings file, is TOML that
names only what differs. Budgets are counts, never seconds: with a clock, two equal runs would differ. Facts of the machine (engine path,
tracking address, device) are not settings: see `steps.run.machine`.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from grpo.base.errors import PlainError
from grpo.base.suggestions import did_you_mean
from grpo.board.phases import PHASES
from grpo.settings.grpo import GrpoConfig
from grpo.settings.language import LANGUAGE_DEFAULTS, SMALL, LanguageConfig, refuse_for_language
from grpo.settings.types import Count, Names, PolicyKindName, Positive, Section, refuse_secret, section_of

PRESET_FOLDER: Final = Path(__file__).parent / "presets"
DEFAULT_PRESET: Final = "laptop"
_MAX_RATE_OF_PRETRAINED: Final = 1e-3


class ConfigError(PlainError, ValueError):
    """The settings cannot be used; the message names each bad key, the reason, and what to write instead."""


class TimeControl(StrEnum):
    """Lichess's speed classes, by base time + 40 increments: under 30 s, 3 min, 8 min, 25 min, and above; correspondence has no clock."""

    ULTRABULLET = "ultrabullet"
    BULLET = "bullet"
    BLITZ = "blitz"
    RAPID = "rapid"
    CLASSICAL = "classical"
    CORRESPONDENCE = "correspondence"


class BoardsConfig(Section):
    """The positions (boards) of the dataset: their source, their number and their splits."""

    files: Names = ()
    """Games (.pgn) and lists of positions (.epd, .fen), plain or compressed as .zst, .gz, .bz2 or .zip; without any, Stockfish plays the
    games. Files, folders, globs or s3://, https:// or hf:// addresses. The version of the dataset has their names and contents, not their
    folders."""
    min_rating: Count | None = None
    """Minimum rating of both players of the files' games; games that do not give both are dropped, and counted in the report."""
    time_controls: Annotated[tuple[Annotated[TimeControl, Field(strict=False)], ...], Field(strict=False)] = ()
    """Only games of these speed classes, and games whose TimeControl tag gives no known one. Empty for all."""
    num_train: Count = 9_000
    """Training boards; one third each are openings, middlegames and endgames."""
    num_validation: Count = 900
    """Validation boards, which decide which weights of imitation are kept."""
    num_heldout: Count = 450
    """Held-out boards on which regret is measured, with move values of the deeper search of `evaluation`."""
    depth: Annotated[int, Field(ge=1, le=30)] = 5
    """Search depth in plies of the move values, the reward: all legal moves at depth 1, then the best eight again at this depth. By a deep
    judge its best move gives away as little as that of all moves at this depth, in less than half the time (docs/results.md)."""
    max_per_game_and_phase: Count = 4
    """Maximum number of boards of one phase from one game, so that long games do not dominate. Fewer boards a game make more games, and
    so more moves to imitate (`pretrain.max_positions`)."""
    exclude: Names = ()
    """Files with evaluation positions (openings, puzzles, test suites). The dataset has neither them nor their mirror images."""
    num_units: Annotated[int, Field(ge=1, le=1_000)] = 8
    """The dataset is made in this many independent parts. Another number makes another dataset."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for name in ("num_train", "num_validation", "num_heldout"):
            if getattr(self, name) % len(PHASES):
                raise ValueError(f"{name} must be a multiple of {len(PHASES)}, so that each phase gets the same number")
        if not self.files and (self.min_rating is not None or self.time_controls):
            raise ValueError('min_rating and time_controls need files = ["GAMES.pgn", ...]')
        return self


class PolicyConfig(Section):
    """The policy. All settings except `kind` describe the network."""

    kind: PolicyKindName = "network"
    """`network` is a neural network that gives every legal move a probability. `language` is a language model that writes its moves
    (see `[language]` and `docs/language.md`); it changes some defaults of `[grpo]`."""
    network: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] = "afterstates"
    """Name of a file of `grpo/policy/networks`, whose `Network` it is: one's own stand beside `afterstates` (docs/library.md)."""
    width: Annotated[int, Field(ge=8, le=4_096, multiple_of=8)] = 256
    """Width of the embeddings whose sum describes the position after a move."""
    hidden_width: Annotated[int, Field(ge=8, le=1_024)] = 32
    """Width of the layer between that sum and the score of the move."""


class PretrainConfig(Section):
    """Imitation learning before GRPO: of the moves played; by a language model of answers made from the move values."""

    max_positions: Count = 150_000
    """Positions whose moves a network imitates: the training boards, and others of the games they come from, up to this many in all. They
    cost no search."""
    batch_size: Count = 256
    """Boards, or answers, per step."""
    learning_rate: Positive = 5e-3
    """Learning rate of AdamW at first; it falls to 0 over all steps. A language model's warms up; for a pretrained one use 1e-5 to 5e-5."""
    steps_per_validation: Count = 200
    """Steps between two measurements of the validation loss."""
    num_steps: Annotated[int, Field(ge=0)] = 1_000
    """Number of steps; the weights with the lowest validation loss are kept. 0 uses a language model as it is."""


class EvaluationConfig(Section):
    """How playing strength is measured, before and after GRPO."""

    heldout_depth: Annotated[int, Field(ge=1, le=30)] = 8
    """Search depth for the move values of held-out boards. Much deeper than `boards.depth`, so that regret measures neither the reward
    again nor the judge's own noise."""
    num_baseline_pairs: Count = 40
    """Openings of the baseline against a random mover, and against Stockfish with one node per move, each played with both colors."""
    opening_book: str = ""
    """A file (or folder, glob, `s3://` address) of positions (EPD, FEN) to begin from instead of generated ones."""
    max_plies: Count = 240
    """A game with this many plies is a draw; reports count such draws separately."""

    ladder_fractions: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False, min_length=1)] = (
        1.0,
        0.7,
        0.5,
        0.3,
        0.15,
        0.07,
    )
    """Lower rungs of the ladder, whose ratings come from games among themselves: Stockfish with the first of `ladder_nodes`, with this
    fraction of random moves. Falls from 1, the random mover."""
    ladder_nodes: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (1, 300, 1_000)
    """Upper rungs: Stockfish at full strength with this many nodes per move, rising."""
    num_calibration_pairs: Count = 12
    """Openings that each rung plays, with both colors, against each of the two rungs below it."""
    num_probe_pairs: Count = 6
    """Openings of each short match that locates a player on the ladder."""
    num_rung_pairs: Count = 255
    """Openings that a candidate and its start play against each of the two nearest rungs, and once more where that does not decide: 510
    give their difference to +-18 Elo. The pretrained policy alone plays half as many."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.ladder_fractions[0] != 1 or any(lower <= upper for lower, upper in itertools.pairwise(self.ladder_fractions)):
            raise ValueError(
                "ladder_fractions must start at 1.0 (the random mover, the ladder's zero) and fall: each further rung is stronger"
            )
        if any(lower >= upper for lower, upper in itertools.pairwise(self.ladder_nodes)):
            raise ValueError("ladder_nodes must rise from rung to rung")
        return self


class SelectionConfig(Section):
    """Which checkpoint is selected, and when it counts as better than the pretrained policy."""

    num_candidates: Count = 4
    """Number of checkpoints, the best by held-out regret, that play the screening games."""
    num_screening_pairs: Count = 40
    """Openings, with both colors, that each candidate plays in each round of sequential halving."""
    num_confirmation_pairs: Count = 300
    """New openings of the confirmation match, the result that is reported."""
    num_sampled_pairs: Count = 100
    """Openings of the games with moves sampled at T = 1. They are reported and decide nothing."""


class TaskResources(Section):
    """Resources that one type of task requests on AWS Batch. A local run uses the machine as it is."""

    num_cpus: Count = 2
    """CPU cores; also the number of torch threads and of Stockfish processes."""
    memory_mib: Annotated[int, Field(ge=512)] = 7_000
    """Memory limit; a task that exceeds it is killed. AWS Batch offers some 7.5 % less than a machine's nominal memory."""
    num_gpus: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs. If above 0, the task goes to the GPU queue, and fails if torch finds no GPU."""


_OVER_DEFAULTS: Final = ("resources", *LANGUAGE_DEFAULTS)
"""Sections whose defaults are not those of their classes alone."""


class ResourcesConfig(Section):
    """How work is divided, and what tasks request on AWS Batch. It changes results only through the device that trains."""

    num_tasks: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Parallel tasks of `build_boards` (at most one for each of `boards.num_units`) and of `confirm`; only ties in the last bits can
    differ."""
    training: TaskResources = TaskResources(num_cpus=4, memory_mib=14_000, num_gpus=1)
    """`num_cpus`, `memory_mib` and `num_gpus` of `pretrain` and `finetune`."""
    games: TaskResources = TaskResources(num_cpus=4)
    """Steps that play games to measure strength."""
    others: TaskResources = TaskResources()
    """All other steps, each task of `build_boards` among them."""


class Settings(Section):
    """All settings: with the code, the locked packages and the machine they determine the result of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Root seed of all random streams."""
    boards: BoardsConfig = BoardsConfig()
    policy: PolicyConfig = PolicyConfig()
    language: LanguageConfig = LanguageConfig()
    pretrain: PretrainConfig = PretrainConfig()
    grpo: GrpoConfig = GrpoConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    selection: SelectionConfig = SelectionConfig()
    resources: ResourcesConfig = ResourcesConfig()

    @model_validator(mode="before")
    @classmethod
    def _over_kind(cls, given: Any) -> Any:
        """Override the defaults of the policy's kind, and of each type of task, with the given keys."""
        if not isinstance(given, dict) or not all(isinstance(given.get(name, {}), dict) for name in ("policy", *_OVER_DEFAULTS)):
            return given  # For pydantic to refuse.
        is_language = given.get("policy", {}).get("kind") == "language"
        below = {"resources": ResourcesConfig().model_dump(), **(LANGUAGE_DEFAULTS if is_language else {})}
        return {**given, **{name: _laid_over(dict(defaults), given.get(name, {})) for name, defaults in below.items()}}

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for address in (*self.boards.files, *self.boards.exclude, self.evaluation.opening_book):
            refuse_secret(address)
        if self.policy.kind == "language":
            refuse_for_language(self.grpo)
            rate = self.pretrain.learning_rate
            if self.language.model != SMALL and self.pretrain.num_steps and rate > _MAX_RATE_OF_PRETRAINED:
                raise ValueError(
                    f"pretrain.learning_rate ({rate:g}) is too high for the pretrained model {self.language.model}: use at most"
                    f" {_MAX_RATE_OF_PRETRAINED:g}, such as 2e-5, or pretrain.num_steps = 0 to use the model as it is"
                )
        elif self.language != LanguageConfig() or not self.pretrain.num_steps:
            raise ValueError('[language] and pretrain.num_steps = 0 need policy.kind = "language"; set both or neither')
        if self.evaluation.heldout_depth <= self.boards.depth:
            raise ValueError(
                f"evaluation.heldout_depth ({self.evaluation.heldout_depth}) must exceed boards.depth ({self.boards.depth}):"
                " regret by the same search would only measure the reward again"
            )
        if self.grpo.states_per_step > self.boards.num_train:
            raise ValueError(
                f"grpo.states_per_step ({self.grpo.states_per_step}) cannot exceed boards.num_train ({self.boards.num_train}):"
                " lower the first or raise the second"
            )
        return self


def preset_names() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in PRESET_FOLDER.glob("*.toml"))


def read_settings(text: str) -> Settings:
    """Return the settings that a TOML (or JSON) text describes.

    The top-level key `preset` names what the other keys override: a shipped preset (`laptop` if there is no such key), or the path of
    another settings file. The text may also be just the name of a preset.

    Raises ConfigError with one line for each bad key.
    """
    preset, given = split_settings(text)
    return settings_over(_of_preset(preset), given)


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Return the shipped preset that a text of settings begins with, and the keys that it lays over that, nested.

    Raises ConfigError for a text that cannot be read, and for a preset that does not exist.
    """
    return _given({"preset": text.strip()} if re.fullmatch(r"[\w-]+", text.strip()) else _parse(text), seen=())


def settings_over(base: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """Return settings, as plain data, overridden by keys. Raises ConfigError with one line for each bad key."""
    try:
        return Settings.model_validate(_laid_over(dict(base), dict(given)))
    except ValidationError as error:
        problems = error.errors()
        # A tuple with one bad item is reported a second time, as too short.
        deeper = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
        raise ConfigError(
            "\n".join(_explain(problem) for problem in problems if problem["loc"] not in deeper or not problem["loc"])
        ) from None


def _of_preset(name: str) -> dict[str, Any]:
    return tomllib.loads((PRESET_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _given(given: dict[str, Any], seen: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the shipped preset below all files that the given keys begin with, and what files and keys lay over it."""
    preset = str(given.pop("preset", DEFAULT_PRESET))
    if preset in seen:
        raise ConfigError(f"settings: preset = {preset!r} is based on itself, through {' and '.join(seen)}")
    if preset in preset_names():
        return preset, given
    if not preset.endswith(".toml"):
        raise ConfigError(
            f"settings: preset = {preset!r} does not exist; {did_you_mean(preset, preset_names())}, or the path of a .toml file"
        )
    try:
        text = Path(preset).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # The second of a file that is no text, and of a name that no file can have.
        raise ConfigError(f"settings: preset = {preset!r}: {error}; name a shipped preset or a TOML file") from None
    shipped, below = _given(_parse(text, where=f"{preset} is "), (*seen, preset))
    return shipped, _laid_over(below, given)


def _parse(text: str, *, where: str = "") -> dict[str, Any]:
    try:
        given = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f'settings: {where}not readable: {_in_words(text, error)}; write TOML such as\n  preset = "smoke"\n  grpo.learning_rate = 1e-3'
        ) from None
    return dict(given)


def _in_words(text: str, error: Exception) -> str:
    """Return an error with the line that it names; of a value that is text without quotes, how to write it."""
    words = str(error).replace("Cannot overwrite a value", "a key is given twice")
    lines, found = text.splitlines(), re.search(r"line (\d+)", words)
    if found is None or not lines:
        return words
    line = lines[min(int(found[1]), len(lines)) - 1].strip()
    if bare := re.fullmatch(r"([\w.]+)\s*=\s*([A-Za-z_][^\s\"']*)", line):
        words = f"text needs quotes, and a shell needs quotes around the whole: '{bare[1]} = \"{bare[2]}\"'"
    return f"{words} (line {found[1]}: {line})"


def _laid_over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


_PLAINER: Final[Mapping[str, str]] = {
    "tuple_type": "input should be a list, in square brackets",
    "model_type": "input should be a section with keys, not a single value",
    "too_short": "input should have at least one item",
}
"""Error type of pydantic -> message without Python terms."""


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section: type[Section] = Settings
        for part in problem["loc"][:-1]:
            section = section_of(section.model_fields[str(part)].annotation) or section
        word = str(problem["loc"][-1])
        return f"settings: unknown key {where}; {_elsewhere(word)}{did_you_mean(word, section.model_fields)}"
    message = _PLAINER.get(problem["type"], problem["msg"]).removeprefix("Value error, ")
    given = problem["input"]
    if problem["type"] == "missing" and isinstance(problem["loc"][-1], int):  # A list that is too short.
        where, message = ".".join(str(part) for part in problem["loc"][:-1]), f"item {problem['loc'][-1] + 1} is missing"
    if isinstance(given, str) and problem["type"] in ("int_type", "float_type"):
        message += ", without quotes"
    shown = f"{where} = {given!r}: " if not isinstance(given, dict | BaseModel) else f"{where}: " if where else ""
    return f"settings: {shown}{message[:1].lower()}{message[1:]}"


def _elsewhere(word: str) -> str:
    """Return the other sections that have a key of this name; "" if there are none."""
    there = [name for name in _all_keys(Settings) if name.rpartition(".")[2] == word]
    return f"it belongs to another section: {', '.join(there)}; " if there else ""


def _all_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if below := section_of(field.annotation):
            yield from _all_keys(below, f"{prefix}{name}.")
