"""The frozen tree of every number a run depends on; unknown keys and impossible values are refused with a did-you-mean.

Each default exists here and nowhere else; together they are the preset `laptop`. A preset, like a user's settings file, is TOML that
names only what differs. Budgets are counts, never seconds: a clock would make two equal runs differ. Facts of the machine (engine
path, tracking address, device) are not settings: see `steps.runtime.machine`.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from grpo.base.errors import PlainError
from grpo.base.suggestions import did_you_mean, nearest
from grpo.board.phases import PHASES
from grpo.settings.grpo import GrpoConfig
from grpo.settings.language import KIND_DEFAULTS, LanguageConfig, refuse_for_language
from grpo.settings.types import Count, Names, PolicyKindName, Positive, Probability, Role, Section, section_of

PRESET_FOLDER: Final = Path(__file__).parent / "presets"
DEFAULT_PRESET: Final = "laptop"


class ConfigError(PlainError, ValueError):
    """The settings cannot be used; the message names each bad key, why it is bad, and what to write instead."""


# Says where something is or how work is spread, and so changes no result.
_WHERE: Final = Role(read_by=(), is_compared=False, may_change_on_resume=True)


class EngineGames(Section):
    """Games of Stockfish against itself, made varied on purpose."""

    nodes: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (60, 240, 960)
    """Node limits; each side of each game draws one, so that strong and weak play meet. Below some 200 a move costs what asking costs."""
    random_opening_plies: Annotated[int, Field(ge=0, le=40)] = 6
    """Up to this many random legal plies begin a game."""
    random_move_probability: Probability = 0.08
    """Chance that a later move is random; such a move is never a label."""
    max_plies: Count = 200
    """A game is cut here."""


class TimeControl(StrEnum):
    """Lichess's classes, by base time + 40 increments: under 30 s, 3 min, 8 min, 25 min, and above; correspondence has no clock."""

    ULTRABULLET = "ultrabullet"
    BULLET = "bullet"
    BLITZ = "blitz"
    RAPID = "rapid"
    CLASSICAL = "classical"
    CORRESPONDENCE = "correspondence"


FILTER_PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "all": {},
    "rated_humans": {"rated_only": True, "humans_only": True},
    "club": {
        "rated_only": True,
        "humans_only": True,
        "min_rating": 1_600,
        "max_rating_gap": 300,
        "time_controls": ["blitz", "rapid", "classical"],
        "min_plies": 20,
    },
    "strong": {
        "rated_only": True,
        "humans_only": True,
        "min_rating": 2_200,
        "max_rating_gap": 300,
        "time_controls": ["blitz", "rapid", "classical"],
        "terminations": ["normal"],
        "min_plies": 20,
        "min_clock_seconds": 10,
    },
}
"""Name -> filters that are on. None of them drops openings: who does gets policies that shuffle in the opening."""


class GameFilters(Section):
    """Which games and positions of files are used. All off by default; each counts what it drops."""

    profile: Literal["all", "rated_humans", "club", "strong"] = "all"
    """A named set of filters (`FILTER_PROFILES`); the other keys are laid over it."""
    rated_only: bool = False
    """Only games that their Event (or Rated) tag calls rated."""
    humans_only: bool = False
    """No games in which a player's title is BOT, or whose name says that it is a program."""
    min_rating: Count | None = None
    """Of both players; an unknown rating is too low."""
    max_rating: Count | None = None
    """Of both players; an unknown rating is too high."""
    max_rating_gap: Annotated[int, Field(ge=0)] | None = None
    """Between the players; an unknown rating is too far."""
    time_controls: Annotated[tuple[Annotated[TimeControl, Field(strict=False)], ...], Field(strict=False)] = ()
    """Only these classes; an unknown time control is none of them."""
    terminations: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Only these ends, as the Termination tag names them, in lower case: `normal`, `time forfeit`, ..."""
    min_plies: Count | None = None
    """Only games at least as long."""
    first_ply: Annotated[int, Field(ge=0)] | None = None
    """No positions before this ply of their game, the first being 0."""
    last_ply: Annotated[int, Field(ge=0)] | None = None
    """No positions after this ply of their game."""
    min_clock_seconds: Annotated[int, Field(ge=0)] | None = None
    """Only moves after which the mover had this much time left; a move without `[%clk ...]` counts as less."""
    max_centipawns: Count | None = None
    """Only positions that the reward's search finds no more uneven than this, in either direction; a forced mate is more."""

    @model_validator(mode="before")
    @classmethod
    def _over_profile(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return {**FILTER_PROFILES.get(str(given.get("profile", "all")), {}), **given}
        return given

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for low, high in (("min_rating", "max_rating"), ("first_ply", "last_ply")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{low} ({least}) cannot exceed {high} ({most})")
        return self


class BoardsConfig(Section):
    """Which positions, and how many of each phase."""

    source: Annotated[Literal["engine", "files"], Role(is_on_card=True)] = "engine"
    """`engine` plays its own games, `files` reads games (PGN) and lists of positions (EPD, FEN)."""
    files: Annotated[Names, _WHERE] = ()
    """Files, folders, globs or s3:// addresses: .pgn, .epd, .fen, plain or as .zst, .gz, .bz2 or .zip.
    Part of the run by name and content, wherever they lie."""
    filters: GameFilters = GameFilters()
    """Which games and positions of the files are used."""
    num_train: Annotated[Count, Role(is_on_card=True)] = 72_000
    """Boards to learn from, one third each of opening, middlegame and endgame."""
    num_validation: Count = 3_000
    """Boards that decide when imitation stops."""
    num_heldout: Count = 900
    """Boards on which regret is measured, valued by the stronger search of `evaluation`."""
    validation_from: str = ""
    """YYYY.MM.DD: games of files from this day on judge, whatever their hash; empty splits by hash of the game."""
    heldout_from: str = ""
    """YYYY.MM.DD, after `validation_from`: games from this day on are held out."""
    max_per_game_and_phase: Count = 6
    """At most this many boards of one phase come from one game, so that long games do not dominate."""
    shortage: Literal["error", "accept", "endgames"] = "error"
    """When the source has too few boards of some phase: stop; go on with fewer, and report it; or let the engine make endgames."""
    exclude: Annotated[Names, _WHERE] = ()
    """Files of what the policy will be judged by (openings, puzzles, suites): no board may be one of their positions or its mirror."""
    num_units: Annotated[int, Field(ge=1, le=1_000), Role(is_compared=False)] = 8
    """The dataset is made in this many independent parts; part of its definition."""
    num_tasks: Annotated[int, Field(ge=1, le=1_000), _WHERE] = 2
    """The parts are spread over this many tasks; changes nothing in the result."""
    games: EngineGames = EngineGames()
    """How the embedded source plays."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for name in ("num_train", "num_validation", "num_heldout"):
            if getattr(self, name) % len(PHASES):
                raise ValueError(f"{name} must be a multiple of {len(PHASES)}, so that the phases share it equally")
        if self.source == "files" and not self.files:
            raise ValueError('source = "files" needs files = ["GAMES.pgn", ...]')
        if self.source != "files":
            given = [name for name in ("files", "validation_from", "heldout_from") if getattr(self, name)]
            given += ["filters"] if self.filters != GameFilters() else []
            if given:
                raise ValueError(f'{given[0]} is read only with source = "files"; set both or neither')
        for name in ("validation_from", "heldout_from"):
            if getattr(self, name) and not re.fullmatch(r"\d{4}\.\d{2}\.\d{2}", getattr(self, name)):
                raise ValueError(f"{name} must be a day such as 2024.03.01")
        if bool(self.validation_from) != bool(self.heldout_from) or self.validation_from > self.heldout_from:
            raise ValueError("validation_from and heldout_from go together, the earlier day first")
        if self.num_tasks > self.num_units:
            raise ValueError(f"num_tasks ({self.num_tasks}) cannot exceed num_units ({self.num_units})")
        return self


class ValuesConfig(Section):
    """How Stockfish values every legal move, and how its scores become win probabilities."""

    depth: Annotated[int, Field(ge=1, le=30), Role(is_on_card=True)] = 2
    """Plies of the one search over all legal moves; the reward's strength."""
    hash_mib: Annotated[int, Field(ge=1, le=1_024), Role(is_compared=False)] = 1
    """Engine hash, cleared before each position; a small one is cheap to clear."""
    transform: Annotated[Literal["logistic", "wdl", "clipped_centipawns"], Role(is_on_card=True)] = "logistic"
    """How scores become values in [0, 1]: see `grpo.engine.move_values`, which states the three formulas."""
    logistic_slope: Positive = 0.003
    """`logistic` and `wdl`: win probability is a logistic of slope * centipawns; small, so that a won position still has a gradient."""
    wdl_logistic_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """`wdl`: share of the logistic that is mixed in, because the engine's own win probability is flat once a game is won."""
    mate_band: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """`logistic` and `wdl`: forced mates share [1 - band, 1] (and [0, band]), the nearer the better; all else lies between."""


class PolicyConfig(Section):
    """What the policy is; all but `kind` describes the network, and which part of it GRPO may change."""

    # A network's versions do not have the kind: they are as they were before there was another.
    kind: Annotated[PolicyKindName, Role(only_with="language")] = "network"
    """`network` gives every legal move a probability. `language` is a language model that writes its moves (`[language]`, and
    `docs/language.md`); with it some of `[grpo]` has other defaults."""
    channels: Annotated[int, Field(ge=8, le=1_024, multiple_of=8), Role(is_on_card=True)] = 64
    """Width."""
    num_blocks: Annotated[int, Field(ge=1, le=64), Role(is_on_card=True)] = 3
    """Residual blocks of two 3x3 convolutions."""
    num_heads: Annotated[int, Field(ge=1, le=64), Role(is_on_card=True)] = 4
    """Heads of the attention layer over the 64 squares."""
    sees_attacks: bool = True
    """Whether the input tells how many men of each kind attack each square, which few boards do not teach a small network."""
    num_frozen_blocks: Annotated[int, Field(ge=0)] = 0
    """GRPO leaves the input layer and this many blocks as they were pretrained; 0 freezes nothing."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.num_frozen_blocks > self.num_blocks:
            raise ValueError(f"num_frozen_blocks ({self.num_frozen_blocks}) cannot exceed num_blocks ({self.num_blocks})")
        if self.channels % self.num_heads:
            raise ValueError(f"channels ({self.channels}) must be a multiple of num_heads ({self.num_heads})")
        return self


class PretrainConfig(Section):
    """Imitation of the moves played, until validation loss stops falling."""

    batch_size: Count = 256
    """Boards a step."""
    learning_rate: Annotated[Positive, Role(is_on_card=True)] = 2e-3
    """AdamW's; cut to a fifth each time the validation loss has stopped falling."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    """AdamW's."""
    steps_per_validation: Count = 140
    """Steps between two looks at the validation loss."""
    patience: Count = 2
    """Looks in a row without a new best loss before the learning rate is cut."""
    num_learning_rate_cuts: Annotated[int, Field(ge=0, le=10)] = 1
    """Imitation ends when the loss stops falling after this many cuts."""
    max_steps: Count = 4_000
    """A bound for the case that the loss falls for ever; the report says when it was reached."""


# Says how a policy is measured, and nothing of how the ladder's rungs are rated.
_PLACES: Final = Role(read_by=("baseline", "select"))


class LadderConfig(Section):
    """Opponents from a random mover to Stockfish, rated by their own games (`grpo.play.ladder`)."""

    random_shares: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False, min_length=1)] = (
        1.0,
        0.7,
        0.5,
        0.3,
        0.15,
    )
    """The lower rungs: Stockfish with the first of `nodes`, of whose moves this share is random; falling from 1, the random mover."""
    nodes: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (1, 300, 1_000)
    """The upper rungs: Stockfish at full strength with so many nodes a move, rising."""
    num_calibration_pairs: Count = 32
    """Openings that a rung plays, with both colours, with each of the next two below it."""
    num_probe_pairs: Annotated[Count, _PLACES] = 6
    """Openings of each short match that finds a player's place on the ladder."""
    num_rung_pairs: Annotated[Count, _PLACES] = 60
    """Openings against each of the two nearest rungs, from which the rating comes."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.random_shares[0] != 1 or any(lower <= upper for lower, upper in itertools.pairwise(self.random_shares)):
            raise ValueError("random_shares must fall from 1.0: the random mover is the ladder's zero, and each further rung is stronger")
        if any(lower >= upper for lower, upper in itertools.pairwise(self.nodes)):
            raise ValueError("nodes must rise from rung to rung")
        return self


class EvaluationConfig(Section):
    """How strength is measured, before and after."""

    heldout_depth: Annotated[int, Field(ge=1, le=30), Role(read_by=("build_boards", "baseline", "select"), may_change_on_resume=False)] = 6
    """Search that values the held-out boards; deeper than the reward's, so that regret is not the reward again."""
    opponent_nodes: Annotated[Count, _PLACES] = 1
    """Results are stated against Stockfish at full strength with so many nodes a move; the baseline plays it, and a random mover."""
    num_baseline_pairs: Annotated[Count, _PLACES] = 60
    """Openings against each of the two, each played with both colours."""
    ladder: LadderConfig = LadderConfig()
    """How ratings come about."""
    adjudication_depth: Annotated[int, Field(ge=1, le=30), _PLACES] = 10
    """Search that values the last position of games that were drawn by repetition, fifty moves or ply cap, for a second score."""
    adjudication_centipawns: Annotated[Count, _PLACES] = 250
    """More than that for one side counts as won in the second score."""
    opening_plies: Annotated[int, Field(ge=1, le=40)] = 8
    """Random legal plies that make an opening of the generator."""
    max_opening_centipawns: Count = 120
    """An opening of the generator is used when a search finds it no more uneven than this."""
    opening_book: Annotated[str, Role(read_by=())] = ""
    """A file (or folder, glob, `s3://` address) of openings instead of the generator's: PGN, EPD or FEN, packed or not."""
    opening_book_plies: Annotated[int, Field(ge=1, le=200)] = 16
    """A book's game is followed for at most so many plies; its listed positions are used as they are."""
    max_plies: Count = 240
    """A game that gets here is a draw, and is counted apart."""


class SelectionConfig(Section):
    """Which checkpoint may be called better than the pretrained policy."""

    num_candidates: Count = 4
    """Checkpoints, best by regret, that play the screening games."""
    num_screening_pairs: Count = 40
    """Openings, with both colours, that a candidate plays in each round of sequential halving."""
    num_confirmation_pairs: Count = 300
    """Fresh openings of the claim that is reported; with `sprt` at most so many."""
    num_tasks: Annotated[int, Field(ge=1, le=1_000), _WHERE] = 2
    """The confirmation and the sampled games are spread over this many tasks; changes nothing but ties in the last bits."""
    num_sampled_pairs: Count = 100
    """Openings of the games with moves sampled at T = 1, which are reported and decide nothing."""
    confirmation: Literal["fixed", "sprt"] = "fixed"
    """`fixed` plays all confirmation games. `sprt` stops when its bounds are told apart: fewer games, a rougher interval."""
    sprt_elo: Annotated[tuple[float, float], Field(strict=False)] = (0.0, 30.0)
    """Bounds of the `sprt`."""
    sprt_model: Literal["logistic", "normalised"] = "logistic"
    """Elo of the bounds."""
    sprt_batch_pairs: Count = 20
    """Openings between two looks of the `sprt`."""
    scored: Literal["auto", "played_out", "adjudicated"] = "auto"
    """Which score decides; both are reported. `adjudicated` gives undecided games to the side that stands better; see
    `evaluation.adjudication_depth`. `auto` is `adjudicated` when most of the first screening games end undecided for lack of technique;
    with one candidate, who plays none, it is `played_out`."""
    phase_tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """A candidate is not promoted when its held-out regret is shown to have grown by more than this in any phase."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if not 0 <= self.sprt_elo[0] < self.sprt_elo[1]:
            raise ValueError(
                f"sprt_elo = {list(self.sprt_elo)}: the first bound must be below the second, and not below 0, where equals would be called"
                " better"
            )
        return self


class TaskResources(Section):
    """What one kind of task asks for where machines are rented; a plain local run takes the machine as it is."""

    num_cpus: Count = 2
    """Cores, and so threads of torch and processes of Stockfish."""
    memory_mib: Annotated[int, Field(ge=512)] = 8_192
    """Memory; who takes more is killed."""
    num_gpus: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs; with any, the task goes to the GPU queue, and fails where torch finds none."""
    max_minutes: Annotated[int, Field(ge=1, le=20_160)] = 60
    """The task is ended after this time: a bound on what a hang may cost, never a way to end training."""


class BoardsResources(TaskResources):
    """See `TaskResources`."""

    memory_mib: Annotated[int, Field(ge=512)] = 4_096
    max_minutes: Annotated[int, Field(ge=1, le=20_160)] = 720


class TrainingResources(TaskResources):
    """See `TaskResources`."""

    num_cpus: Count = 4
    memory_mib: Annotated[int, Field(ge=512)] = 14_000
    num_gpus: Annotated[int, Field(ge=0, le=16)] = 1
    max_minutes: Annotated[int, Field(ge=1, le=20_160)] = 2_880


class GamesResources(TaskResources):
    """See `TaskResources`."""

    num_cpus: Count = 4
    max_minutes: Annotated[int, Field(ge=1, le=20_160)] = 720


class ResourcesConfig(Section):
    """What tasks ask for on AWS Batch, Kubernetes and the like. No result depends on it but by the device that trains."""

    boards: BoardsResources = BoardsResources()
    """Each task of `build_boards`; their number is `boards.num_tasks`."""
    training: TrainingResources = TrainingResources()
    """`pretrain` and `finetune`."""
    games: GamesResources = GamesResources()
    """Steps that play games to measure strength."""
    others: TaskResources = TaskResources()
    """All other steps."""
    num_retries: Annotated[int, Field(ge=0, le=4)] = 3
    """Further tries of a task whose machine was lost (spot reclaim, killed process); an error of settings or code is not tried again."""
    num_nodes: Annotated[int, Field(ge=2, le=64)] = 2
    """Machines of `finetune` in flows/chess_grpo_nodes.py; flows/chess_grpo.py trains on one."""


class Settings(Section):
    """Everything that a run's result depends on, besides the code, the locked packages and the machine."""

    seed: Annotated[
        int, Field(ge=0, lt=2**31), Role(read_by=("build_boards", "pretrain", "baseline", "finetune", "select"), is_on_card=True)
    ] = 0
    """Root of every random stream."""
    boards: Annotated[BoardsConfig, Role(read_by=("build_boards", "check_boards"))] = BoardsConfig()
    values: Annotated[ValuesConfig, Role(read_by=("build_boards", "check_boards", "finetune"))] = ValuesConfig()
    policy: Annotated[PolicyConfig, Role(read_by=("pretrain", "finetune"))] = PolicyConfig()
    language: Annotated[LanguageConfig, Role(read_by=("pretrain", "baseline", "finetune", "select"), only_with="language")] = (
        LanguageConfig()
    )
    pretrain: Annotated[PretrainConfig, Role(read_by=("pretrain",), only_with="network")] = PretrainConfig()
    grpo: Annotated[GrpoConfig, Role(read_by=("finetune",), may_change_on_resume=True)] = GrpoConfig()
    evaluation: Annotated[EvaluationConfig, Role(read_by=("calibrate", "baseline", "select"), may_change_on_resume=True)] = (
        EvaluationConfig()
    )
    selection: Annotated[SelectionConfig, Role(read_by=("select",), may_change_on_resume=True)] = SelectionConfig()
    resources: Annotated[ResourcesConfig, _WHERE] = ResourcesConfig()

    @model_validator(mode="before")
    @classmethod
    def _over_kind(cls, given: Any) -> Any:
        """Lay what is given over the defaults of the policy's kind."""
        if not isinstance(given, dict) or not isinstance(given.get("policy", {}), dict) or not isinstance(given.get("grpo", {}), dict):
            return given  # For pydantic to refuse.
        kind = given.get("policy", {}).get("kind", "network")
        return {**given, "grpo": _laid_over(dict(KIND_DEFAULTS.get(str(kind), {})), given.get("grpo", {}))}

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.policy.kind == "language":
            refuse_for_language(self.grpo, self.language)
        elif self.language != LanguageConfig():
            raise ValueError('[language] is read only with policy.kind = "language"; set both or neither')
        if self.evaluation.heldout_depth <= self.values.depth:
            raise ValueError(
                f"evaluation.heldout_depth ({self.evaluation.heldout_depth}) must exceed values.depth ({self.values.depth}):"
                " regret under the reward's own search would only measure the reward again"
            )
        if self.grpo.states_per_step > self.boards.num_train:
            raise ValueError(f"grpo.states_per_step ({self.grpo.states_per_step}) cannot exceed boards.num_train ({self.boards.num_train})")
        return self


def preset_names() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in PRESET_FOLDER.glob("*.toml"))


def read_settings(text: str) -> Settings:
    """Return the settings that a TOML (or JSON) text describes.

    The top-level key `preset` names what the other keys are laid over: a shipped preset (`laptop` if there is no such key), or the path of
    another file of this kind. The text may also be nothing but a preset's name.

    Raises ConfigError with one line for each bad key.
    """
    given = {"preset": text.strip()} if re.fullmatch(r"[\w-]+", text.strip()) else _parse(text)
    try:
        return Settings.model_validate(_with_base(given, seen=()))
    except ValidationError as error:
        problems = error.errors()
        # A tuple with one bad item is reported a second time, as too short.
        deeper = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
        raise ConfigError(
            "\n".join(_explain(problem) for problem in problems if problem["loc"] not in deeper or not problem["loc"])
        ) from None


def _with_base(given: dict[str, Any], seen: tuple[str, ...]) -> dict[str, Any]:
    """Return the given keys laid over the preset, or the file, that they name."""
    preset = str(given.pop("preset", DEFAULT_PRESET))
    if preset in seen:
        raise ConfigError(f"settings: preset = {preset!r} is laid over itself, by way of {' and '.join(seen)}")
    if preset in preset_names():
        return _laid_over(tomllib.loads((PRESET_FOLDER / f"{preset}.toml").read_text(encoding="utf-8")), given)
    if not preset.endswith(".toml"):
        raise ConfigError(
            f"settings: preset = {preset!r} does not exist; {did_you_mean(preset, preset_names())}, or the path of a .toml file"
        )
    try:
        text = Path(preset).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"settings: preset = {preset!r}: {error.strerror}; name a shipped preset or a file that is there") from None
    except UnicodeDecodeError:
        raise ConfigError(f"settings: preset = {preset!r}: no text in UTF-8; name a file of TOML") from None
    return _laid_over(_with_base(_parse(text, where=f"{preset} is "), (*seen, preset)), given)


def _parse(text: str, *, where: str = "") -> dict[str, Any]:
    try:
        given = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f'settings: {where}not readable: {_in_words(error)}{_line(text, str(error))}; write TOML such as\n  preset = "smoke"\n'
            "  grpo.learning_rate = 1e-3"
        ) from None
    return dict(given)


def _in_words(error: Exception) -> str:
    return str(error).replace("Cannot overwrite a value", "a key stands there twice")


def _line(text: str, error: str) -> str:
    """Return the line that an error names, and, where a text without its quotes is what is wrong with it, that."""
    lines, found = text.splitlines(), re.search(r"line (\d+)", error)
    if found is None or not lines:
        return ""
    line = lines[min(int(found[1]), len(lines)) - 1].strip()
    bare = re.fullmatch(r"([\w.]+)\s*=\s*([A-Za-z_][^\s\"']*)", line)
    return f", which is: {line}" + (
        f" (a text stands in quotes, which a shell wants in quotes too: '{bare[1]} = \"{bare[2]}\"')" if bare else ""
    )


def _laid_over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


_PLAINER: Final[Mapping[str, str]] = {
    "tuple_type": "input should be a list, in square brackets",
    "model_type": "input should be a section with keys of its own, not one value",
    "too_short": "input should have at least one item",
}
"""Of pydantic's messages, those in words of Python; by type."""


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
    if problem["type"] == "missing" and isinstance(problem["loc"][-1], int):  # Of a list that is too short.
        where, message = ".".join(str(part) for part in problem["loc"][:-1]), f"item {problem['loc'][-1] + 1} is missing"
    message += _hint(problem["type"], given, problem.get("ctx", {}))
    shown = f"{where} = {given!r}: " if not isinstance(given, dict | BaseModel) else f"{where}: " if where else ""
    return f"settings: {shown}{message[:1].lower()}{message[1:]}"


def _hint(kind: str, given: Any, context: Mapping[str, Any]) -> str:
    """Return how to write a value that is nearly right; nothing for others."""
    if kind in ("int_type", "float_type") and isinstance(given, str) and re.fullmatch(r"[-+\d.eE_]+", given):
        return ", without quotes"
    if kind == "int_type" and isinstance(given, float) and given.is_integer():
        return f", without a point or an exponent: {int(given)}"
    if kind in ("literal_error", "enum") and isinstance(given, str):
        close = nearest(given, re.findall(r"'([^']*)'", str(context.get("expected", ""))))
        return f"; {close.strip()}" if close else ""
    return ""


def _elsewhere(word: str) -> str:
    """Return in which other sections a key is known, if in any."""
    there = [name for name in _all_keys(Settings) if name.rpartition(".")[2] == word]
    return f"it belongs to another section: {', '.join(there)}; " if there else ""


def _all_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if below := section_of(field.annotation):
            yield from _all_keys(below, f"{prefix}{name}.")
