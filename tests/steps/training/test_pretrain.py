"""The step `pretrain`: what it leaves, that it is the same again, and that a model that cannot be read goes no further."""

from importlib import import_module
from pathlib import Path

import pytest
from doubles import CPU, TINY
from made_work import Listener, work_in
from presets import TEST
from tiny_training import prepare

from grpo.base import seeding
from grpo.base.files import read_json
from grpo.base.seeding import named_seed
from grpo.dataset.table import Split, board_arrays
from grpo.language.generate.answers import TooLongError
from grpo.language.learn.parse_rate_gate import UnreadableError
from grpo.language.model.policy import LanguagePolicy
from grpo.policy import policy as policies
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy, weights_hash
from grpo.settings.names import declared
from grpo.settings.tree import Settings, read_settings
from grpo.train.imitation import validation_metrics
from steps.common.dataset import read_boards
from steps.names import ANSWERS, REPORT
from steps.pretrain import STEP


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "inputs"
    prepare(folder)
    return folder / "boards"


def network() -> Settings:
    return Settings.model_validate(
        {"seed": 5, "pretrain": {"num_steps": 6, "steps_per_validation": 2, "batch_size": 8}, "policy": TINY.model_dump()}
    )


def language(*, min_parse_rate: float, num_steps: int, max_tokens: int = 100) -> Settings:
    small = f"language = {{small_width = 32, small_num_layers = 1, max_answer_tokens = {max_tokens}, min_parse_rate = {min_parse_rate}}}"
    pretrain = f"pretrain = {{num_steps = {num_steps}, batch_size = 8, learning_rate = 4e-3, steps_per_validation = 2}}"
    return read_settings(f'preset = "{TEST}"\npolicy.kind = "language"\n{pretrain}\n{small}')


def pretrained(boards: Path, place: Path, given: Settings) -> tuple[Path, Listener]:
    place.mkdir(exist_ok=True)
    told = Listener()
    work = work_in(place / "output", declared(given, STEP.reads_for(given.policy.kind)), inputs={"join_boards": boards}, listeners=(told,))
    import_module(STEP.variant(given.policy.kind).module).body(work)
    return place / "output", told


def test_a_network_is_left_with_a_report_and_is_the_same_again(boards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[int] = []
    for module in (seeding, policies):
        monkeypatch.setattr(module, "named_seed", lambda root, *names: roots.append(root) or named_seed(root, *names))
    folder, told = pretrained(boards, tmp_path / "first", network())
    assert set(roots) == {network().seed}
    report = read_json(folder / REPORT)
    assert report["weights"] == weights_hash(NetworkPolicy.load(folder, CPU))
    assert (report["num_positions"], report["num_steps"]) == (32, 6)
    assert [record.step for record in told.records] == [2, 4, 6]
    best = min(told.records, key=lambda record: record.metrics["imitation/validation_loss"])
    assert report["best_step"] == best.step
    validation = board_arrays(read_boards(boards), split=Split.VALIDATION)
    measured = validation_metrics(NetworkPolicy.load(folder, CPU), PositionBatch.from_arrays(validation), validation.played)
    assert measured == pytest.approx({f"imitation/{name}": report[name] for name in ("validation_loss", "top1", "top5", "entropy")})
    assert {"imitation/validation_loss", "imitation/top1", "imitation/entropy"} <= told.metrics.keys()
    assert read_json(pretrained(boards, tmp_path / "again", network())[0] / REPORT) == report


def test_a_language_model_is_left_with_answers_and_a_report(boards: Path, tmp_path: Path) -> None:
    folder, told = pretrained(boards, tmp_path, language(min_parse_rate=0.0, num_steps=4))
    report = read_json(folder / REPORT)
    policy = LanguagePolicy.load(folder, CPU)
    assert report["weights"] == weights_hash(policy)
    assert (report["model"], report["commit"], report["num_steps"]) == ("small", "", 4)
    assert report["parse_rates"].keys() == {"move", "environment"}
    assert [record.step for record in told.records] == [2, 4, 4]
    assert {"language/imitation_loss", "language/parse_rate/move", "language/legal_rate"} <= told.metrics.keys()
    assert (folder / ANSWERS).is_file()


def test_a_limit_that_would_cut_the_answers_to_imitate_is_refused_before_imitation(boards: Path, tmp_path: Path) -> None:
    with pytest.raises(TooLongError, match=r"would be truncated: raise language\.max_answer_tokens \(now 16\) to \d+ or more"):
        pretrained(boards, tmp_path, language(min_parse_rate=0.0, num_steps=4, max_tokens=16))
    assert list((tmp_path / "output").iterdir()) == []


def test_random_weights_get_no_further_and_leave_nothing(boards: Path, tmp_path: Path) -> None:
    given = language(min_parse_rate=0.5, num_steps=0)
    with pytest.raises(UnreadableError, match=r"random weights .*train first by imitation, with pretrain\.num_steps"):
        pretrained(boards, tmp_path, given)
    assert list((tmp_path / "output").iterdir()) == []
