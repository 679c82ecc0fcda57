"""Policies and checkpoints: read back as written, refused when anything is not as it was, and the best ones kept."""

import json
import math
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CPU, TINY, NetworkTrainer, fake_arrays, some_boards, trainer_of
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from grpo.base.files import MANIFEST, CorruptError, read_json, write_json, write_manifest
from grpo.policy.checkpoints import (
    STATE,
    TrainingState,
    checkpoint_folders,
    checkpoint_step,
    checkpoints_to_delete,
    load_checkpoint,
    save_checkpoint,
)
from grpo.policy.files import FACTS, WEIGHTS, IncompatibleError, action_table_hash
from grpo.policy.policy import NetworkPolicy, new_policy, weights_hash, write_tensors
from grpo.settings.grpo import GrpoConfig

ORIGIN = {"dataset": "abc", "settings": {"seed": 3, "rates": [1e-4, 0.1]}}

load = partial(load_checkpoint, device=CPU, kind=NetworkPolicy)


@pytest.fixture(scope="session")
def trainer() -> NetworkTrainer:
    """Return a trainer after two steps; no test changes it."""
    made = trainer_of(GrpoConfig(states_per_step=8, num_minibatches=1, group_size=4), fake_arrays(some_boards(8)))
    made.step()
    made.step()
    return made


@pytest.fixture
def folder(trainer: NetworkTrainer, tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "run", trainer.policy, trainer.state(ORIGIN))


def test_a_checkpoint_is_read_back_exactly_as_it_was_written(trainer: NetworkTrainer, folder: Path) -> None:
    policy, state = load(folder)
    expected = trainer.state(ORIGIN)
    assert sorted(path.name for path in folder.iterdir()) == [FACTS, MANIFEST, WEIGHTS, STATE]
    assert policy.config == TINY
    for name, tensor in trainer.policy.network.state_dict().items():
        assert torch.equal(policy.network.state_dict()[name], tensor)
    assert (state.step, state.facts) == (2, ORIGIN)
    assert state.control == json.loads(json.dumps(expected.control))
    assert {name.split(".")[-1] for name in state.tensors_of("optimizer.")} == {"step", "exp_avg", "exp_avg_sq"}
    assert state.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert state.tensors[name].dtype == tensor.dtype
        assert torch.equal(state.tensors[name], tensor)


# Damage.


@pytest.mark.parametrize("name", [WEIGHTS, FACTS, STATE])
def test_a_damaged_file_is_refused_by_name(name: str, folder: Path) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-9] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(CorruptError, match=f"{folder / name} is changed since it was written"):
        load(folder)


def test_a_network_whose_layers_share_weights_is_saved_and_read_back(tmp_path: Path) -> None:
    written, read = (new_policy(TINY, seed=seed, device=CPU) for seed in (1, 2))
    for policy in (written, read):
        policy.network.tied = torch.nn.Linear(4, 4)
        policy.network.again = policy.network.tied
    write_tensors(tmp_path / WEIGHTS, written.network.state_dict())
    read.network.load_state_dict(load_file(tmp_path / WEIGHTS))
    assert weights_hash(read) == weights_hash(written)


@pytest.mark.parametrize("name", [WEIGHTS, STATE])
def test_a_pickle_is_never_opened_not_even_one_that_the_manifest_vouches_for(name: str, folder: Path, tmp_path: Path) -> None:
    went_off = tmp_path / "went-off"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(went_off),)

    (folder / name).write_bytes(pickle.dumps(Bomb()))
    (folder / MANIFEST).unlink()
    write_manifest(folder, {"kind": "checkpoint", "step": 2})
    with pytest.raises(Exception, match=r"(?i)header|safetensor"):
        load(folder)
    assert not went_off.exists()
    pickle.loads((folder / name).read_bytes())
    assert went_off.exists(), "the bomb was a real one"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (WEIGHTS, lambda content: content[: len(content) // 2]),
        (FACTS, lambda content: content[:-5]),
        (FACTS, lambda content: content.replace(b'"policy"', b'"polity"')),
        (FACTS, lambda content: content.replace(b'"width": 16', b'"width": 24')),
        (FACTS, lambda content: content.replace(action_table_hash().encode(), b"deadbeef" * 8)),
    ],
)
def test_a_copied_policy_that_is_damaged_or_anothers_is_refused_by_the_name_of_its_place_in_one_line(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    new_policy(TINY, seed=0, device=CPU).save(tmp_path)
    changed = change((tmp_path / name).read_bytes())
    assert changed != (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(changed)
    with pytest.raises((CorruptError, IncompatibleError)) as refused:
        NetworkPolicy.load(tmp_path, CPU)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_of_another_kind_of_policy_is_refused(folder: Path) -> None:
    facts = read_json(folder / FACTS)
    write_json(folder / FACTS, {**facts, "policy": {"kind": "language"}})
    write_manifest(folder, {"kind": "checkpoint", "step": 2})
    with pytest.raises(IncompatibleError, match="holds a policy of kind 'language', this run trains a policy of kind 'network'"):
        load(folder)


# Which there are, and which stay.


def test_checkpoints_are_found_in_the_order_of_their_steps_without_what_a_killed_writer_left_behind(tmp_path: Path) -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    for step in (2, 10, 9, 100):
        save_checkpoint(tmp_path, policy, TrainingState(step=step, control={}, facts={}, tensors={}))
    for name in (".step-00000002.k3j2h1", "step-00000003.tmp", "step-4"):
        (tmp_path / name).mkdir()
    assert [checkpoint_step(path) for path in checkpoint_folders(tmp_path)] == [2, 9, 10, 100]


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
    assert checkpoints_to_delete({10: 0.30}, keep=0) == []


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
