"""Checkpoints: read back as written, refused when anything is not as it was, and whole or not there at all."""

import json
import math
import os
import pickle
import re
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CPU, TINY, fake_arrays, some_boards, trainer_of
from hypothesis import given
from hypothesis import strategies as st

from grpo.base.files import MANIFEST, CorruptError, StorageError, read_json, sha256_text, verified_manifest, write_json, write_manifest
from grpo.policy.distribution import NetworkPolicy, new_policy
from grpo.policy.files import ACTION_TABLE_HASH, LANGUAGE, POLICY, WEIGHTS, IncompatibleError
from grpo.settings.grpo import GrpoConfig
from grpo.train import checkpoints
from grpo.train.checkpoints import (
    NETWORK_FORMAT,
    TrainingState,
    checkpoint_folders,
    checkpoint_step,
    checkpoints_to_delete,
    load_checkpoint,
    load_policy,
    save_checkpoint,
    save_policy,
    sha256_bytes,
    weights_hash,
)
from grpo.train.trainer import Trainer

STATE = "state.safetensors"
FILES = (WEIGHTS, POLICY, STATE)
BOARDS = some_boards(8)
FACTS = {"dataset": "abc", "settings": {"seed": 3, "rates": [1e-4, 0.1]}}


def trained(num_steps: int, *, seed: int = 0) -> Trainer[NetworkPolicy]:
    """Return a trainer that has done some steps."""
    config = GrpoConfig(states_per_step=8, num_minibatches=1, group_size=4)
    policy, reference = (new_policy(TINY, seed=seed, device=CPU) for _ in range(2))
    trainer = trainer_of(config, fake_arrays(BOARDS), policy=policy, reference=reference, seed=seed)
    for _ in range(num_steps):
        trainer.step()
    return trainer


@pytest.fixture(scope="session")
def trainer() -> Trainer[NetworkPolicy]:
    """Return a trainer after three steps; nobody changes it."""
    return trained(3)


@pytest.fixture
def folder(trainer: Trainer[NetworkPolicy], tmp_path: Path) -> Path:
    """Return the checkpoint of the trainer's third step."""
    return save_checkpoint(tmp_path / "run", trainer.policy, TINY, trainer.state(FACTS), NETWORK_FORMAT)


def saved(root: Path, *steps: int) -> list[Path]:
    """Write checkpoints of these steps, with weights of their own each."""
    return [
        save_checkpoint(
            root,
            new_policy(TINY, seed=step, device=CPU),
            TINY,
            TrainingState(step=step, control={}, facts={}, tensors={}),
            NETWORK_FORMAT,
        )
        for step in steps
    ]


# Round trip.


def test_a_checkpoint_is_read_back_exactly_as_it_was_written(trainer: Trainer[NetworkPolicy], folder: Path) -> None:
    policy, config, state = load_checkpoint(folder, CPU, NETWORK_FORMAT)
    expected = trainer.state(FACTS)
    assert config == TINY
    assert weights_hash(policy) == weights_hash(trainer.policy)
    for name, tensor in trainer.policy.network.state_dict().items():
        assert torch.equal(policy.network.state_dict()[name], tensor)
    assert (state.step, state.facts) == (3, FACTS)
    assert state.control == json.loads(json.dumps(expected.control))
    assert state.tensors.keys() == expected.tensors.keys()
    assert {name.split(".")[-1] for name in state.tensors_of("optimiser.")} == {"step", "exp_avg", "exp_avg_sq"}
    for name, tensor in expected.tensors.items():
        assert state.tensors[name].dtype == tensor.dtype
        assert torch.equal(state.tensors[name], tensor)


def test_a_policy_alone_is_read_back_with_the_architecture_it_was_made_with(tmp_path: Path) -> None:
    config = TINY.model_copy(update={"width": 24, "hidden_width": 16})
    policy = new_policy(config, seed=5, device=CPU)
    save_policy(tmp_path, policy, config)
    loaded, loaded_config = load_policy(tmp_path, CPU)
    assert loaded_config == config
    assert weights_hash(loaded) == weights_hash(policy)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([POLICY, WEIGHTS])


# Damage.


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip_a_bit, empty, delete])
def test_a_damaged_file_is_refused_by_name(name: str, damage: Callable[[Path], None], folder: Path) -> None:
    damage(folder / name)
    with pytest.raises(CorruptError, match=f"{folder / name} is {'missing' if damage is delete else 'changed since it was written'}"):
        load_checkpoint(folder, CPU, NETWORK_FORMAT)


@pytest.mark.parametrize("name", [WEIGHTS, STATE])
def test_a_pickle_is_never_opened_not_even_one_that_the_manifest_vouches_for(name: str, folder: Path, tmp_path: Path) -> None:
    went_off = tmp_path / "went-off"

    class Bomb:
        """Runs a command when unpickled."""

        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(went_off),)

    (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CorruptError, match=name):
        load_checkpoint(folder, CPU, NETWORK_FORMAT)
    (folder / MANIFEST).unlink()
    write_manifest(folder, {"kind": "checkpoint", "step": 3})
    with pytest.raises(Exception, match=r"(?i)header|safetensor"):
        load_checkpoint(folder, CPU, NETWORK_FORMAT)
    assert not went_off.exists()
    pickle.loads((folder / name).read_bytes())
    assert went_off.exists(), "the bomb was a real one"


# Which one is the latest.


def test_the_latest_checkpoint_is_the_one_with_the_most_steps(tmp_path: Path) -> None:
    folders = saved(tmp_path, 2, 10, 9, 100)
    assert [checkpoint_step(path) for path in checkpoint_folders(tmp_path)] == [2, 9, 10, 100]
    assert checkpoint_folders(tmp_path)[-1] == folders[3]


@pytest.mark.parametrize("damage", [flip_a_bit, delete])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_whole(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folders = saved(tmp_path, 1, 2, 3)
    damage(folders[2] / WEIGHTS)
    with pytest.raises(CorruptError, match=re.escape(str(folders[2] / WEIGHTS))):
        verified_manifest(folders[2])
    verified_manifest(folders[1])
    assert weights_hash(load_checkpoint(folders[1], CPU, NETWORK_FORMAT)[0]) == weights_hash(new_policy(TINY, seed=2, device=CPU))


def test_what_a_killed_writer_left_behind_is_no_checkpoint(tmp_path: Path) -> None:
    [good] = saved(tmp_path, 1)
    (tmp_path / ".step-00000002.k3j2h1").mkdir()
    (tmp_path / "step-00000003.tmp").mkdir()
    (tmp_path / "step-4").mkdir()
    assert checkpoint_folders(tmp_path) == [good]
    verified_manifest(good)


# Whole or not at all.


def test_a_full_disk_is_told_with_the_bytes_that_are_wanted_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*args: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save", fill)
    weights = sum(tensor.nbytes for tensor in new_policy(TINY, seed=2, device=CPU).network.state_dict().values())
    with pytest.raises(StorageError, match=r"step-00000002 could not be written \(No space left on device\): it needs") as caught:
        saved(tmp_path, 2)
    needed, free = (int(word.replace(",", "")) for word in re.findall(r"([\d,]+) bytes", str(caught.value)))
    assert weights < needed < weights + 2**21
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)


def test_a_damaged_checkpoint_is_replaced_when_training_comes_to_its_step_again(tmp_path: Path) -> None:
    # A run falls back to step 1, goes on, and saves step 2 anew.
    folders = saved(tmp_path, 1, 2)
    flip_a_bit(folders[1] / WEIGHTS)
    with pytest.raises(CorruptError):
        verified_manifest(folders[1])
    saved(tmp_path, 2)
    assert checkpoint_folders(tmp_path)[-1] == folders[1]
    verified_manifest(folders[1])


# How many are kept.

REGRETS = st.dictionaries(st.integers(0, 40), st.sampled_from([0.1, 0.2, 0.3, math.nan]) | st.floats(0, 1), max_size=12)


@given(regrets=REGRETS, keep=st.integers(0, 12))
def test_the_best_and_the_newest_stay_and_of_the_rest_those_with_the_lowest_regret(regrets: dict[int, float], keep: int) -> None:
    gone = checkpoints_to_delete(regrets, keep=keep)
    kept = regrets.keys() - gone
    assert gone == sorted(set(gone))
    assert set(gone) <= regrets.keys()
    finite = {step: math.inf if math.isnan(regret) else regret for step, regret in regrets.items()}
    if regrets:
        assert max(regrets) in kept
        assert min(finite.values()) in {finite[step] for step in kept}
    assert len(kept) == min(len(regrets), max(keep, len(kept)))
    assert len(kept) <= max(keep, 2)
    rest = kept - {max(regrets, default=0)}
    assert all(finite[step] >= finite[other] for step in gone for other in rest if finite[other] > min(finite.values()))


def test_deletion_by_hand() -> None:
    regrets = {10: 0.30, 20: 0.10, 30: 0.25, 40: 0.20, 50: 0.35}
    assert checkpoints_to_delete(regrets, keep=3) == [10, 30]
    assert checkpoints_to_delete(regrets, keep=5) == []
    assert checkpoints_to_delete({10: 0.30}, keep=0) == []
    assert checkpoints_to_delete({}, keep=3) == []


# Compatible or not.


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (WEIGHTS, lambda content: content[: len(content) // 2]),
        (WEIGHTS, lambda _: b""),
        (WEIGHTS, lambda content: b"\xff" * 8 + content[8:]),
        (POLICY, lambda content: content[:-5]),
        (POLICY, lambda _: b"[1]"),
        (POLICY, lambda content: content.replace(b'"policy"', b'"polity"')),
        (POLICY, lambda content: content.replace(b'"width"', b'"wdth"')),
    ],
)
def test_a_copied_policy_that_is_damaged_is_refused_by_the_name_of_its_file_in_one_line(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    save_policy(tmp_path, new_policy(TINY, seed=0, device=CPU), TINY)
    changed = change((tmp_path / name).read_bytes())
    assert changed != (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(changed)
    with pytest.raises((CorruptError, IncompatibleError)) as refused:
        load_policy(tmp_path, CPU)
    assert str(tmp_path / name) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("load", [load_policy, partial(load_checkpoint, policy_format=NETWORK_FORMAT)])
def test_a_policy_of_another_action_table_is_refused(load: Callable[[Path, torch.device], Any], folder: Path) -> None:
    facts = read_json(folder / POLICY)
    write_json(folder / POLICY, {**facts, "action_table": "deadbeef" * 8})
    write_manifest(folder, {"kind": "checkpoint", "step": 3})
    with pytest.raises(IncompatibleError, match=f"action_table is deadbeefdead, this code's is {ACTION_TABLE_HASH[:12]}"):
        load(folder, CPU)


def test_a_checkpoint_of_another_kind_of_policy_is_refused(folder: Path) -> None:
    with pytest.raises(IncompatibleError, match="holds a policy of kind 'network', and this run trains one of kind 'language'"):
        load_checkpoint(folder, CPU, replace(NETWORK_FORMAT, kind=LANGUAGE))


@pytest.mark.parametrize(("key", "value"), [("width", 24), ("hidden_width", 16)])
def test_weights_of_another_architecture_are_refused(key: str, value: int, folder: Path) -> None:
    facts = read_json(folder / POLICY)
    facts["policy"][key] = value
    write_json(folder / POLICY, facts)
    with pytest.raises((IncompatibleError, RuntimeError), match=r"size mismatch|Missing key"):
        load_policy(folder, CPU)


# The hash of the weights.


def test_equal_weights_have_one_hash_and_one_changed_bit_gives_another() -> None:
    one, same = (new_policy(TINY, seed=0, device=CPU) for _ in range(2))
    assert weights_hash(one) == weights_hash(same)
    hashes = {weights_hash(one)}
    for parameter in same.network.parameters():
        flat = parameter.data.view(-1).view(torch.int32)
        flat[-1] ^= 1
        hashes.add(weights_hash(same))
        flat[-1] ^= 1
    assert len(hashes) == 1 + len(list(same.network.parameters())), "each tensor counts"
    assert weights_hash(same) == weights_hash(one)


def test_hashing_weights_takes_little_memory_and_gives_what_it_always_gave() -> None:
    large = torch.arange(4_000_000, dtype=torch.float32)
    tracemalloc.start()
    sha256_bytes(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < large.nbytes / 2
    for tensor in (large, torch.tensor(3), torch.zeros(0, 2), torch.tensor([[True], [False]])):
        assert sha256_bytes(tensor) == sha256_text(f"{tuple(tensor.shape)}{tensor.numpy().tobytes().hex()}")
