"""Settings: every shipped preset is read, everything impossible is refused by name, with what to write instead."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from grpo.metrics.records import Event, Record, refuse_undeclared
from grpo.settings.tree import PRESET_FOLDER, ConfigError, Settings, preset_names, read_settings

DEFAULT = Settings()
NUM_TRAIN, HELDOUT_DEPTH = DEFAULT.boards.num_train, DEFAULT.evaluation.heldout_depth


BAD_SETTINGS = (
    ("evaluation.num_rung_pair = 1", "unknown key evaluation.num_rung_pair; did you mean num_rung_pairs?"),
    ("[grop]\nclip_low = 0.1", "unknown key grop; did you mean grpo? known here: seed, boards, policy,"),
    ("grpo.num_steps = 10.0", "grpo.num_steps = 10.0: input should be a valid integer"),
    ('seed = "1"', "seed = '1': input should be a valid integer, without quotes"),
    ('boards.exclude = ["https://h/x.epd?key=hunter2"]', "settings: https://h/x.epd: give this address without a user or a query"),
    ('boards.files = ""', "boards.files.0 = '': string should have at least 1 character"),
    ("boards.files = 3", "boards.files = 3: input should be a list, in square brackets"),
    ('{"seed": 1', "not readable: Expecting ',' delimiter: line 1 column 11 (char 10) (line 1: {\"seed\": 1); write TOML"),
    ("grpo.kl_target = None", "TOML has no None: leave grpo.kl_target out (line 1: grpo.kl_target = None)"),
    ("language.legal_moves = False", "write false (line 1: language.legal_moves = False)"),
    ('boards.files = ""', "boards.files.0 = '': string should have at least 1 character"),
    # Contradictions.
    ("boards.num_train = 100", "boards: num_train must be a multiple of 3"),
    ("boards.min_rating = 1500", "boards: min_rating and time_controls need files ="),
    ("grpo = {states_per_step = 511, num_minibatches = 2}", "states_per_step (511) must be a multiple of num_minibatches (2)"),
    ('grpo.entropy_schedule = "field_notes"', 'entropy_schedule = "field_notes" needs [grpo.field_notes]; its numbers depend'),
    ("language.max_questions = 5", '[language] needs policy.kind = "language": set this kind, or leave out [language]'),
    ("pretrain.num_steps = 0", 'num_steps = 0 needs policy.kind = "language": set this kind, or at least 1 step'),
    ("grpo.entropy_coefficient = 0.0", 'controller; entropy_schedule = "constant" allows any coefficient'),
    ("grpo.kl_target = 0.05\ngrpo.kl_coefficient = 0.5", "kl_coefficient (0.5) must be 0.0001 to 0.1, the bounds of its controller"),
    ("grpo.kl_target = 0.05\ngrpo.kl_coefficient = 0.0", "without kl_target any coefficient is allowed"),
    ('policy.kind = "language"\nlanguage.model = "a/b"', "pretrain.learning_rate (0.004) is too high for the pretrained model"),
    (f"grpo.states_per_step = {2 * NUM_TRAIN}\ngrpo.self_play_fraction = 0.0", f"cannot exceed boards.num_train ({NUM_TRAIN})"),
    ("grpo.states_per_step = 600\ngrpo.self_play_fraction = 0.5\ngrpo.self_play_states = 299", "self_play_states (299) must be at least"),
    (f"boards.depth = {HELDOUT_DEPTH}", f"evaluation.heldout_depth ({HELDOUT_DEPTH}) must exceed boards.depth ({HELDOUT_DEPTH})"),
    ("evaluation.ladder_fractions = [1.0, 0.5, 0.5]", "ladder_fractions must start at 1.0"),
)


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
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
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("value", ["nan", "inf", '"1"', "true", "-1e9"])
def test_no_number_may_be_infinite_a_word_a_truth_or_hugely_negative(value: str) -> None:
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


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_preset_is_read_alike_by_its_name_its_key_and_its_content(name: str) -> None:
    by_name = read_settings(name)
    assert read_settings(f" {name}\n") == by_name
    assert read_settings(f'preset = "{name}"') == by_name
    assert read_settings((PRESET_FOLDER / f"{name}.toml").read_text()) == by_name


def test_the_default_preset_is_the_defaults_and_nothing_given_is_the_default_preset() -> None:
    assert read_settings("laptop") == read_settings("") == Settings()


@pytest.mark.parametrize("name", preset_names())
def test_settings_written_out_in_full_are_read_back_equal(name: str) -> None:
    settings = read_settings(name)
    assert read_settings(settings.model_dump_json()) == settings


def test_a_file_may_begin_with_a_byte_order_mark_as_windows_editors_write_it(tmp_path: Path) -> None:
    marked = tmp_path / "marked.toml"
    marked.write_text('preset = "smoke"\nseed = 3', encoding="utf-8-sig")
    assert read_settings(f'preset = "{marked}"').seed == read_settings(marked.read_text(encoding="utf-8")).seed == 3


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
        f"seed = {'9' * 5_000}",
        "seed = " + "[" * 1_000 + "]" * 1_000,
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


def test_names_that_are_not_declared_are_refused_before_a_record_is_written() -> None:
    refuse_undeclared(Record(3, {"grpo/loss": 0.5, "grpo/entropy/opening": 1.0}))
    with pytest.raises(ValueError, match=r"not declared in grpo/metrics/table.py: grpo/entropi, grpo/los, recovery_startd$"):
        refuse_undeclared(Record(3, {"grpo/los": 0.5, "grpo/loss": 0.5, "grpo/entropi": 1.0}, (Event("recovery_startd", ""),)))


@pytest.mark.parametrize("name", ["language", "language-gpu"])
def test_a_language_run_is_judged_by_enough_games_and_by_weak_opponents(name: str) -> None:
    settings = read_settings(name)
    assert settings.selection.num_confirmation_pairs >= 150
    assert settings.evaluation.ladder_fractions[:3] == (1.0, 0.95, 0.9)
    assert settings.language.legal_moves


def test_the_model_of_a_gpu_has_25_to_124_million_weights() -> None:
    language = read_settings("language-gpu").language
    assert 25e6 <= 12 * language.small_num_layers * language.small_width**2 <= 124e6
