"""All settings of a run.

The defaults are the preset `laptop`. A preset or settings file is TOML with the settings that differ from another preset or file
(key `preset`).

- Held-out boards: boards on which a policy is measured and not trained.
- Ply: a move of one player.
- Pair: two games from one opening with exchanged colors.
- Candidate: the checkpoint of GRPO that may become the result of the run.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from grpo.base.errors import PlainError
from grpo.base.suggestions import did_you_mean
from grpo.board.phases import PHASES
from grpo.settings.grpo import GrpoConfig
from grpo.settings.kinds import KINDS, NETWORK, known_kind
from grpo.settings.language import LanguageConfig
from grpo.settings.types import Count, Names, Positive, Section, refuse_secret, section_of

_Fraction = Annotated[float, Field(gt=0, le=1)]
PRESET_FOLDER: Final = Path(__file__).parent / "presets"
DEFAULT_PRESET: Final = "laptop"


class ConfigError(PlainError, ValueError):
    """Unusable settings."""


class TimeControl(StrEnum):
    """Lichess's classes by base time + 40 increments: below 30 s, 3 min, 8 min, 25 min, 1 day, or longer (or without a clock)."""

    ULTRABULLET = "ultrabullet"
    BULLET = "bullet"
    BLITZ = "blitz"
    RAPID = "rapid"
    CLASSICAL = "classical"
    CORRESPONDENCE = "correspondence"


class BoardsConfig(Section):
    files: Names = ()
    """Games (.pgn) or positions (.epd, .fen), plain or compressed as .zst, .gz, .bz2 or .zip; if empty, Stockfish plays the games. Files,
    folders, globs or s3://, https:// or hf:// addresses."""
    min_rating: Count | None = None
    """Minimum rating of both players; games without both ratings are dropped."""
    time_controls: Annotated[tuple[Annotated[TimeControl, Field(strict=False)], ...], Field(strict=False)] = ()
    """Speed classes of the files' games; empty for all. Games without a known class are kept."""
    num_train: Count = 9_000
    """Training boards, a third from each phase (opening, middlegame, endgame)."""
    num_validation: Count = 900
    """Validation boards; imitation keeps the weights of the lowest loss on these boards."""
    num_heldout: Count = 450
    """Held-out boards for measuring regret (the value that moves lose)."""
    depth: Annotated[int, Field(ge=1, le=30)] = 5
    """Depth in plies of the search that gives the move values, which are the reward. It searches all legal moves to depth 1, then the best
    eight to this depth.
    """
    max_per_game_and_phase: Count = 4
    """Maximum boards of a phase per game."""
    exclude: Names = ()
    """Files of positions, such as openings; the dataset leaves out these positions and their color mirrors."""
    num_units: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Independent parts of the dataset. Another number makes another dataset."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for name in ("num_train", "num_validation", "num_heldout"):
            if getattr(self, name) % len(PHASES):
                raise ValueError(f"{name} must be a multiple of {len(PHASES)}, so that all phases have equally many boards")
        if not self.files and (self.min_rating is not None or self.time_controls):
            raise ValueError('min_rating and time_controls need files = ["GAMES.pgn", ...]')
        return self


class PolicyConfig(Section):
    """All settings except `kind` describe the network."""

    kind: Annotated[str, AfterValidator(known_kind)] = NETWORK
    """`network` is a neural network with a probability for every legal move. `language` is a language model that writes its moves
    (`docs/language.md`); it changes some defaults.
    """
    network: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] = "replies"
    """File in `grpo/policy/networks` with the class `Network` (docs/library.md). `replies` also looks at the replies to its three likeliest
    moves. `afterstates` does not, and plays in less than half the time."""
    width: Annotated[int, Field(ge=8, le=4_096, multiple_of=8)] = 256
    """Width of the embeddings, whose sum describes the position after a move."""
    hidden_width: Annotated[int, Field(ge=8, le=1_024)] = 32
    """Width of the layer between the embeddings' sum and the score."""


class PretrainConfig(Section):
    """Imitation before GRPO. The policy imitates the moves played or, with `language.lists_moves`, answers made from move values."""

    max_positions: Count = 150_000
    """Maximum positions that a network (never fewer than all training boards), or a language model without `lists_moves`, imitates."""
    batch_size: Count = 256
    """Boards, or a language model's answers, per step."""
    learning_rate: Positive = 5e-3
    """Highest learning rate of AdamW; it falls toward 0. Use 1e-5 to 5e-5 for a pretrained language model."""
    steps_per_validation: Count = 200
    """Steps between validation measurements."""
    num_steps: Annotated[int, Field(ge=0)] = 1_000
    """Number of steps; 0 uses a language model as it is."""


class EvaluationConfig(Section):
    """The ladder's rungs are Stockfish opponents of rising strength, rated by games against each other."""

    heldout_depth: Annotated[int, Field(ge=1, le=30)] = 7
    """Search depth of held-out boards, in plies, above `boards.depth`. With the same search, regret would repeat the reward's noise."""
    num_baseline_pairs: Count = 40
    """Openings of the pretrained policy's matches against a random mover and against Stockfish with one node."""
    opening_book: str = ""
    """File, folder, glob or `s3://` address of openings (EPD, FEN); if empty, openings are generated."""
    max_plies: Count = 240
    """A game of this many plies is a draw."""

    ladder_fractions: Annotated[tuple[_Fraction, ...], Field(strict=False, min_length=1)] = (1.0, 0.7, 0.5, 0.3, 0.15, 0.07)
    """Lower rungs of the ladder: Stockfish with the first of `ladder_nodes` and these falling fractions of random moves."""
    ladder_nodes: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (1, 300, 1_000)
    """Upper rungs: Stockfish with these rising nodes per move."""
    num_calibration_pairs: Count = 12
    """Openings of each rung against each of the two rungs below."""
    num_probe_pairs: Count = 6
    """Openings of each short match that locates a player on the ladder."""
    num_rung_pairs: Count = 255
    """Openings that candidate and pretrained policy play against each of the two nearest rungs. They play as many again if the first games
    do not show which of the two is stronger. The step `baseline` plays half as many, rounded up.
    """

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.ladder_fractions[0] != 1 or any(lower <= upper for lower, upper in itertools.pairwise(self.ladder_fractions)):
            raise ValueError("ladder_fractions must start at 1.0 (the random mover) and fall from rung to rung")
        if any(lower >= upper for lower, upper in itertools.pairwise(self.ladder_nodes)):
            raise ValueError("ladder_nodes must rise from rung to rung")
        return self


class SelectionConfig(Section):
    """The last checkpoint is the candidate unless another is shown to be better (sequential halving)."""

    num_candidates: Count = 3
    """Checkpoints that play screening games: the last, and those of lowest held-out regret."""
    num_screening_pairs: Count = 50
    """Openings of each candidate in a round of sequential halving."""
    num_confirmation_pairs: Count = 300
    """New openings of each match that decides whether the candidate is stronger than the pretrained policy or the previous champion."""
    num_sampled_pairs: Count = 100
    """Openings of games with moves sampled at temperature 1, which are only reported."""


class TaskResources(Section):
    """Request of one task on AWS Batch; local runs read only `num_gpus`."""

    num_cpus: Count = 2
    """CPU cores, torch threads and Stockfish processes."""
    memory_mib: Annotated[int, Field(ge=512)] = 7_000
    """Memory limit. AWS Batch offers about 7.5 % less than a machine's nominal memory."""
    num_gpus: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of GPUs. At 0 the steps use the CPU, also in local runs. Above 0, tasks on AWS Batch fail without a GPU."""


class ResourcesConfig(Section):
    """Resources change results only by rounding. Versions of steps that use torch contain device and threads."""

    num_tasks: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Parallel tasks of `build_boards` (at most `boards.num_units`) and `confirm`."""
    training: TaskResources = TaskResources(num_cpus=4, memory_mib=14_000, num_gpus=1)
    """`num_cpus`, `memory_mib` and `num_gpus` of `pretrain` and `finetune`."""
    games: TaskResources = TaskResources(num_cpus=4)
    """Resources of steps that play games."""
    others: TaskResources = TaskResources()
    """Resources of all other steps, and of each task of `build_boards`."""


class Settings(Section):
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
    def _with_defaults(cls, given: Any) -> Any:
        """Fill in the defaults of the policy's kind, and of each type of task.

        Otherwise a partial `[resources.training]` would take its other keys from `TaskResources`, not from `ResourcesConfig.training`.
        """
        if not isinstance(given, dict) or not isinstance(policy := given.get("policy", {}), dict):
            return given  # Pydantic refuses these settings.
        kind = KINDS.get(str(policy.get("kind", NETWORK)))
        sections = {"resources": ResourcesConfig().model_dump(), **(kind.defaults if kind is not None else {})}
        if not all(isinstance(given.get(name, {}), dict) for name in sections):
            return given
        return {**given, **{name: _merged(dict(defaults), given.get(name, {})) for name, defaults in sections.items()}}

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for address in (*self.boards.files, *self.boards.exclude, self.evaluation.opening_book):
            refuse_secret(address)
        kind, rate = KINDS[self.policy.kind], self.pretrain.learning_rate if self.pretrain.num_steps else None
        if kind.refuse is not None:
            kind.refuse(getattr(self, kind.section) if kind.section else None, self.grpo, rate)
        for name, other in KINDS.items():
            if other is not kind and other.section and (section := getattr(self, other.section)) != type(section)():
                raise ValueError(f'[{other.section}] needs policy.kind = "{name}": set this kind, or leave out [{other.section}]')
        if rate is None and not kind.can_skip_imitation:
            names = " or ".join(f'"{name}"' for name, other in KINDS.items() if other.can_skip_imitation)
            raise ValueError(f"pretrain.num_steps = 0 needs policy.kind = {names}: set this kind, or at least 1 step")
        if self.evaluation.heldout_depth <= self.boards.depth:
            raise ValueError(
                f"evaluation.heldout_depth ({self.evaluation.heldout_depth}) must exceed boards.depth ({self.boards.depth}):"
                " with the same search, regret would only repeat the reward"
            )
        if self.grpo.states_per_step > self.boards.num_train:
            raise ValueError(f"grpo.states_per_step ({self.grpo.states_per_step}) cannot exceed boards.num_train ({self.boards.num_train})")
        return self


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESET_FOLDER.glob("*.toml"))


def read_settings(text: str) -> Settings:
    """Return the settings of a TOML or JSON text, or of a preset's name. Raises ConfigError with one line per bad key."""
    preset, given = split_settings(text)
    defaults = tomllib.loads((PRESET_FOLDER / f"{preset}.toml").read_text(encoding="utf-8"))
    return settings_over(defaults, given)


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Return the shipped preset on which a text is based, and the keys that override the preset, nested.

    Raises ConfigError for an unreadable text or an unknown preset.
    """
    return _resolved({"preset": text.strip()} if re.fullmatch(r"[\w-]+", text.strip()) else _parse(text), seen=())


def settings_over(base: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """`given` overrides `base`. Raises ConfigError as `read_settings`."""
    try:
        return Settings.model_validate(_merged(dict(base), dict(given)))
    except ValidationError as error:
        problems = error.errors()
        # Pydantic reports a tuple with a bad item twice: at the item, and at the tuple as too short. Only the deeper problem is kept.
        # Contradictions between sections have the location ().
        deeper = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
        raise ConfigError(
            "\n".join(_explain(problem) for problem in problems if problem["loc"] not in deeper or not problem["loc"])
        ) from None


def _resolved(keys: dict[str, Any], seen: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Follow the key `preset` from file to file. `seen`: files that led here."""
    preset, given = str(keys.get("preset", DEFAULT_PRESET)), {key: value for key, value in keys.items() if key != "preset"}
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
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a null character in the path.
        raise ConfigError(f"settings: preset = {preset!r}: {error}; name a shipped preset or a TOML file") from None
    shipped, base = _resolved(_parse(text, where=f"{preset} is "), (*seen, preset))
    return shipped, _merged(base, given)


def _parse(text: str, *, where: str = "") -> dict[str, Any]:
    try:
        text = text.removeprefix("\ufeff")
        given = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"settings: {where}not readable: {_error_text(text, error)}; write TOML such as\n"
            '  preset = "smoke"\n  grpo.learning_rate = 1e-3'
        ) from None
    return dict(given)


def _error_text(text: str, error: Exception) -> str:
    """Return the message with the line that it names, or the remedy for a value without quotes."""
    words = str(error).replace("Cannot overwrite a value", "a key is given twice")
    lines, number = text.splitlines(), re.search(r"line (\d+)", words)
    if number is None or not lines:
        return words
    line = lines[min(int(number[1]), len(lines)) - 1].strip()
    if bare := re.fullmatch(r"([\w.]+)\s*=\s*([A-Za-z_][^\s\"']*)", line):
        quoted = f"text needs double quotes; in a shell, put single quotes around the setting: '{bare[1]} = \"{bare[2]}\"'"
        literals = {"true": "write true", "false": "write false", "none": f"TOML has no None: leave {bare[1]} out"}
        words = literals.get(bare[2].lower(), quoted)
    return f"{words} (line {number[1]}: {line})"


def _merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


_PLAINER: Final[Mapping[str, str]] = {
    "tuple_type": "input should be a list, in square brackets",
    "model_type": "input should be a section with keys, not a single value",
    "too_short": "input should have at least one item",
}
"""Pydantic's error type -> message without Python terms."""


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section: type[Section] = Settings
        for part in problem["loc"][:-1]:
            section = section_of(section.model_fields[str(part)].annotation) or section
        word = str(problem["loc"][-1])
        return f"settings: unknown key {where}; {_other_sections(word)}{did_you_mean(word, section.model_fields)}"
    message = _PLAINER.get(problem["type"], problem["msg"]).removeprefix("Value error, ")
    given = problem["input"]
    if problem["type"] == "missing" and isinstance(problem["loc"][-1], int):  # The list is too short.
        where, message = ".".join(str(part) for part in problem["loc"][:-1]), f"item {problem['loc'][-1] + 1} is missing"
    if isinstance(given, str) and problem["type"] in ("int_type", "float_type"):
        message += ", without quotes"
    shown = f"{where} = {given!r}: " if not isinstance(given, dict | BaseModel) else f"{where}: " if where else ""
    return f"settings: {shown}{message[:1].lower()}{message[1:]}"


def _other_sections(word: str) -> str:
    names = [name for name in _all_keys(Settings) if name.rpartition(".")[2] == word]
    return f"it belongs to another section: {', '.join(names)}; " if names else ""


def _all_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if inner := section_of(field.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")
