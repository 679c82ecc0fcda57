"""Settings: every shipped preset is read, everything impossible is refused by name, with what to write instead."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import FIELD_NOTES
from pydantic import BaseModel, ValidationError

from grpo.settings import grpo as grpo_config
from grpo.settings.grpo import AlarmConfig, FieldNotesRecovery
from grpo.settings.tree import (
    PRESET_FOLDER,
    ConfigError,
    GrpoConfig,
    Settings,
    preset_names,
    read_settings,
)
from grpo.settings.types import Section

FILES = 'boards.source = "files"\nboards.files = "x.pgn"\n'
DEFAULT = Settings()
NUM_TRAIN, NUM_UNITS, HELDOUT_DEPTH = DEFAULT.boards.num_train, DEFAULT.boards.num_units, DEFAULT.evaluation.heldout_depth


BAD_SETTINGS = (
    ("boards.games.nods = [1]", "unknown key boards.games.nods; did you mean nodes? known here: nodes, random_opening_plies,"),
    ("[grop]\nclip_low = 0.1", "unknown key grop; did you mean grpo? known here: seed, boards, values, policy,"),
    ("grpo.num_steps = 10.0", "grpo.num_steps = 10.0: input should be a valid integer, without a point or an exponent: 10"),
    ('seed = "1"', "seed = '1': input should be a valid integer, without quotes"),
    ("policy.width = 12", "policy.width = 12: input should be a multiple of 8"),
    ("evaluation.ladder.nodes = [0, 1]", "evaluation.ladder.nodes.0 = 0: input should be greater than or equal to 1"),
    ("boards.games.nodes = []", "boards.games.nodes = []: input should have at least one item"),
    ("boards.files = 3", "boards.files = 3: input should be a list, in square brackets"),
    ('{"seed": 1', "not readable: Expecting ',' delimiter: line 1 column 11 (char 10), which is: {\"seed\": 1; write TOML"),
    # Contradictions.
    ("boards.num_train = 100", "boards: num_train must be a multiple of 3"),
    ('boards.source = "files"', 'boards: source = "files" needs files = ["GAMES.pgn", ...]'),
    ('boards.files = "x.pgn"', 'boards: files needs source = "files"; set both or neither'),
    ("boards.filters.min_rating = 1500", 'boards: filters needs source = "files"'),
    (f"boards.num_tasks = {NUM_UNITS + 1}", f"num_tasks ({NUM_UNITS + 1}) cannot exceed num_units ({NUM_UNITS})"),
    ("grpo = {states_per_step = 511, num_minibatches = 2}", "states_per_step (511) must be a multiple of num_minibatches (2)"),
    ('grpo.entropy_schedule = "field_notes"', 'entropy_schedule = "field_notes" needs [grpo.field_notes], which has no defaults'),
    ('grpo.estimator = "trajectory"', 'estimator = "trajectory" needs depth.num_own_moves of 2 or more: with 1 use "sampled"'),
    ('grpo = {kl_schedule = "target", kl_coefficient = 0.0}', "kl_coefficient (0.0) must lie within kl_target's bounds, "),
    ('grpo = {kl_schedule = "target", kl_coefficient = 9.0}', "kl_coefficient (9.0) must lie within kl_target's bounds, "),
    ('preset = "clean"\ngrpo = {entropy_schedule = "field_notes", kl_schedule = "target"}', 'kl_schedule must be "constant"'),
    ("grpo.entropy_coefficient = 0.0", "entropy_coefficient (0.0) must lie within entropy_target's bounds, "),
    ('policy.kind = "language"\nlanguage.model = "a/b"', "language.cloning.learning_rate (0.004) is too high for the pretrained model"),
    ("grpo.entropy_target = {min_coefficient = 0.05, max_coefficient = 0.01}", "min_coefficient (0.05) cannot exceed max_coefficient"),
    ("grpo.kl_target = {min_coefficient = 0.2, max_coefficient = 0.1}", "min_coefficient (0.2) cannot exceed max_coefficient (0.1)"),
    ('grpo = {critical_measure = "normalised_entropy", critical_entropy = 1.0}', "critical_entropy (1.0) must be below 1 when"),
    (f"grpo.states_per_step = {2 * NUM_TRAIN}\ngrpo.self_play.fraction = 0.0", f"cannot exceed boards.num_train ({NUM_TRAIN})"),
    ("grpo.states_per_step = 600\ngrpo.self_play = {fraction = 0.5, states_per_round = 299}", "states_per_round (299) must be at least"),
    ('grpo = {estimator = "exact", baseline = "leave_one_out"}', 'baseline = "leave_one_out" needs sampled groups'),
    ('grpo.depth.opponent = "engine"', "depth.opponent and depth.teacher_probability need depth.num_own_moves of 2 or more"),
    (f"values.depth = {HELDOUT_DEPTH}", f"evaluation.heldout_depth ({HELDOUT_DEPTH}) must exceed values.depth ({HELDOUT_DEPTH})"),
    ("evaluation.ladder.random_fractions = [0.9, 0.5]", "random_fractions must start at 1.0"),
    ("evaluation.ladder.random_fractions = [1.0, 0.5, 0.5]", "random_fractions must start at 1.0"),
    ("evaluation.ladder.nodes = [1, 1]", "evaluation.ladder: nodes must rise from rung to rung"),
)


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, default) of every setting below a section."""
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from leaves(type(field.default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.default


LEAVES = dict(leaves(Settings))
NUMBERS = sorted(key for key, default in LEAVES.items() if isinstance(default, int | float) and not isinstance(default, bool))


@pytest.mark.parametrize(("text", "message"), BAD_SETTINGS, ids=[text.replace("\n", " ") for text, _ in BAD_SETTINGS])
def test_bad_settings_are_refused_with_this_message(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_settings(text)
    assert str(refusal.value).startswith("settings: ")
    assert message in str(refusal.value)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", '"1"', "true", "[1]", "-1e9"])
def test_no_number_may_be_infinite_a_word_a_truth_a_list_or_hugely_negative(value: str) -> None:
    for key in NUMBERS:
        with pytest.raises(ConfigError, match=f"^settings: {key} = "):
            read_settings(f"{key} = {value}")


def test_each_bad_key_gets_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as refusal:
        read_settings("seed = 1.5\n[grpo]\nclip_low = -1\nklip = 2")
    lines = str(refusal.value).splitlines()
    assert sorted(line.split(" = ")[0].split(";")[0] for line in lines) == [
        "settings: grpo.clip_low", "settings: seed", "settings: unknown key grpo.klip",
    ]  # fmt: skip


def test_every_setting_can_be_named_and_has_a_default() -> None:
    assert set(LEAVES) >= {"seed", "boards.games.nodes", "values.depth", "grpo.learning_rate", "selection.num_candidates"}
    for key, default in LEAVES.items():
        given: Any = default
        for part in reversed(key.split(".")):
            given = {part: given}
        assert read_settings(json.dumps(given)) == Settings(), key


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_preset_is_read_alike_by_its_name_its_key_and_its_content(name: str) -> None:
    by_name = read_settings(name)
    assert read_settings(f" {name}\n") == by_name
    assert read_settings(f'preset = "{name}"') == by_name
    assert read_settings((PRESET_FOLDER / f"{name}.toml").read_text()) == by_name


@pytest.mark.parametrize(
    "name",
    # `clean` holds to the field notes' numbers, whatever the defaults become.
    [name for name in preset_names() if name != "clean"],
)
def test_a_shipped_preset_names_only_what_differs_from_the_defaults(name: str) -> None:
    def flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", tuple(value) if isinstance(value, list) else value

    named = dict(flat(tomllib.loads((PRESET_FOLDER / f"{name}.toml").read_text())))
    assert {key: value for key, value in named.items() if LEAVES[key] == value} == {}


def test_the_default_preset_is_the_defaults_and_nothing_given_is_the_default_preset() -> None:
    assert read_settings("laptop") == read_settings("") == Settings()


def test_given_keys_are_laid_over_the_preset_and_leave_its_others_alone() -> None:
    smoke = read_settings("smoke")
    given = read_settings('preset = "smoke"\n[grpo]\nlearning_rate = 3e-3\n[boards.games]\nnodes = [7]')
    assert given.grpo.learning_rate == 3e-3
    assert given.boards.games.nodes == (7,)
    assert given.grpo.num_steps == smoke.grpo.num_steps != DEFAULT.grpo.num_steps
    restored = given.model_copy(update={"grpo": smoke.grpo, "boards": smoke.boards})
    assert restored == smoke


def test_toml_and_json_say_the_same() -> None:
    assert read_settings('{"preset": "test", "grpo": {"clip_high": 0.4}}') == read_settings('preset = "test"\ngrpo.clip_high = 0.4')


@pytest.mark.parametrize("name", preset_names())
def test_settings_written_out_in_full_are_read_back_equal(name: str) -> None:
    settings = read_settings(name)
    assert read_settings(settings.model_dump_json()) == settings
    assert read_settings(json.dumps(settings.model_dump(mode="json"))) == settings


def test_settings_are_frozen_at_every_level() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.seed = 3
    with pytest.raises(ValidationError, match="frozen"):
        settings.grpo.learning_rate = 3.0
    with pytest.raises(ValidationError, match="frozen"):
        settings.boards.games.max_plies = 3


@pytest.mark.parametrize(
    "text",
    [
        "grpo = {entropy_coefficient = 0.005, entropy_target = {min_coefficient = 0.005, max_coefficient = 0.05}}",
        "grpo = {entropy_coefficient = 0.05, entropy_target = {min_coefficient = 0.005, max_coefficient = 0.05}}",
        "grpo = {entropy_coefficient = 0.02, entropy_target = {min_coefficient = 0.02, max_coefficient = 0.02}}",
        'grpo = {entropy_schedule = "annealed", entropy_coefficient = 0.0}',
        'grpo = {estimator = "trajectory", depth = {num_own_moves = 2}}',
        'grpo = {kl_schedule = "target", kl_coefficient = 0.0001, kl_target = {min_coefficient = 0.0001, max_coefficient = 0.1}}',
        'grpo = {kl_schedule = "target", kl_coefficient = 0.1, kl_target = {min_coefficient = 0.0001, max_coefficient = 0.1}}',
        'grpo = {critical_measure = "normalised_entropy", critical_entropy = 0.999}',
        "grpo.critical_entropy = 1.0",
        "grpo.kl_target = {min_coefficient = 0.1, max_coefficient = 0.1}",
        'preset = "clean"\ngrpo.entropy_schedule = "field_notes"',
    ],
)
def test_what_lies_just_on_the_right_side_of_a_contradiction_is_allowed(text: str) -> None:
    settings = read_settings(text)
    assert settings != Settings()
    assert read_settings(settings.model_dump_json()) == settings


def test_all_contradictory_sections_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        read_settings("[grpo.entropy_target]\nmin_coefficient = 0.9\n[grpo.kl_target]\nmin_coefficient = 0.9")
    lines = str(refusal.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["grpo.entropy_target", "grpo.kl_target"]


def test_the_field_notes_recovery_has_no_defaults_and_says_what_is_missing() -> None:
    assert Settings().grpo.field_notes is None
    with pytest.raises(ConfigError) as refusal:
        read_settings("grpo.field_notes.entropy_floor = 1.5")
    missing = [name for name in FieldNotesRecovery.model_fields if name != "entropy_floor"]
    assert str(refusal.value).splitlines() == [f"settings: grpo.field_notes.{name}: field required" for name in missing]


def test_the_clean_preset_is_the_clean_configuration_of_the_field_notes() -> None:
    settings = read_settings("clean")
    grpo = settings.grpo
    assert (grpo.learning_rate, grpo.group_size, grpo.depth.num_own_moves, grpo.temperature) == (1e-6, 16, 16 // 2, 1.3)
    assert (grpo.clip_low, grpo.clip_high, grpo.entropy_coefficient, grpo.entropy_schedule) == (0.2, 0.2, 0.0, "constant")
    assert grpo.num_minibatches * grpo.num_inner_epochs == 1, "one optimiser step a rollout"
    assert (grpo.depth.teacher_probability, grpo.depth.teacher_plies, grpo.critical_entropy) == (0.1, 4, 0)
    assert (grpo.estimator, grpo.baseline, grpo.divide_by_std, grpo.self_play.fraction) == ("trajectory", "mean", False, 0)
    # Their reward was cp / 1,000 and ours is a quarter of that, so that what a nat costs is a quarter too.
    assert grpo.kl_coefficient == 0.001 / 4
    assert (settings.values.depth, settings.values.transform) == (4, "clipped_centipawns")
    assert grpo.field_notes == FIELD_NOTES


def test_every_part_of_grpos_settings_says_what_each_key_is() -> None:
    sections = [kind for kind in vars(grpo_config).values() if isinstance(kind, type) and issubclass(kind, Section) and kind is not Section]
    assert {GrpoConfig, FieldNotesRecovery, AlarmConfig} <= set(sections)
    undescribed = [
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description and not issubclass(type(field.default), Section) and name != "field_notes"
    ]
    assert undescribed == []


def test_a_preset_may_be_a_file_that_is_laid_over_another(tmp_path: Path) -> None:
    below, above = tmp_path / "below.toml", tmp_path / "above.toml"
    below.write_text('preset = "smoke"\ngrpo.num_steps = 7\nseed = 1')
    above.write_text(f'preset = "{below}"\nseed = 2')
    settings = read_settings(f'preset = "{above}"\ngrpo.group_size = 4')
    smoke = read_settings("smoke")
    assert (settings.seed, settings.grpo.num_steps, settings.grpo.group_size) == (2, 7, 4)
    assert settings.boards == smoke.boards


@pytest.mark.parametrize(
    "text",
    [
        'preset = "no\\u0000such.toml"',
        '{"preset": "\\ud800.toml"}',
        f"seed = {'9' * 5_000}",
        "seed = " + "[" * 1_000 + "]" * 1_000,
        '{"seed": ' + "[" * 100_000,
    ],
)
def test_text_that_no_parser_takes_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match="settings: "):
        read_settings(text)


def test_a_preset_file_that_is_absent_or_laid_over_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_settings(f'preset = "{tmp_path / "absent.toml"}"')
    ring = tmp_path / "ring.toml"
    ring.write_text(f'preset = "{ring}"')
    with pytest.raises(ConfigError, match="based on itself"):
        read_settings(f'preset = "{ring}"')


# Boards from files.
