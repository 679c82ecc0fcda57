"""Exported policies: what a stranger can read of them plays as the policy does, and what does not is never written."""

import argparse
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import chess
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from doubles import CPU, TINY, some_boards
from fake_hub import TOKEN, fake_hub
from onnx import numpy_helper

from grpo.base.errors import PlainError
from grpo.base.files import read_json, sha256_file, verified_manifest
from grpo.board.actions import ACTIONS, legal_action_ids
from grpo.board.encoding import encode, position_key
from grpo.board.onnx_policy import ACTIONS_INPUT, INPUT, ONNX, OUTPUT, REPEATS_INPUT, OnnxPolicy
from grpo.board.phases import PHASES, phase_of
from grpo.learning.checkpoints import load_policy, save_policy, weights_hash
from grpo.policy.distribution import NetworkPolicy, PositionBatch, new_policy
from steps.cli.export import add_commands
from steps.export import network as exporting
from steps.export.network import Parity, ParityError, export_policy, onnx_parity, random_play_positions, write_onnx
from steps.store.versions import ROOT

torch.set_num_threads(1)

BOARDS = some_boards(60)


def lively(seed: int) -> NetworkPolicy:
    """Return a tiny policy none of whose parts is at its neutral beginning, so that each one counts."""
    policy = new_policy(TINY, seed=seed, device=CPU)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))
    return policy


def raw_logits(path: Path, positions: PositionBatch) -> torch.Tensor:
    """Return the file's logits of all columns, padding too."""
    inputs = {INPUT: positions.encodings, ACTIONS_INPUT: positions.action_ids, REPEATS_INPUT: positions.repeats}
    (logits,) = onnxruntime.InferenceSession(path).run([OUTPUT], {name: tensor.numpy() for name, tensor in inputs.items()})
    return torch.from_numpy(logits)


def main(arguments: list[str]) -> int:
    """Do what the command line says, as the console does."""
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except PlainError as error:
        print(error, file=sys.stderr)
        return 1


@pytest.fixture(scope="module")
def policy() -> NetworkPolicy:
    return lively(0)


@pytest.fixture(scope="module")
def source(policy: NetworkPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the policy."""
    folder = tmp_path_factory.mktemp("policy")
    save_policy(folder, policy, TINY)
    return folder


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parity]:
    """Return what one export wrote, and measured."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "NUM_PARITY_POSITIONS", 100)
        return folder, export_policy(source, folder, facts={"run": "a run", "policy_step": 7})


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.prove)])
def test_the_onnx_file_plays_all_positions_as_the_policy_does(count: int, exported: tuple[Path, Parity], policy: NetworkPolicy) -> None:
    folder, of_export = exported
    parity = of_export if count == 100 else onnx_parity(folder / ONNX, policy, random_play_positions(count, seed=0))
    assert (parity.num_positions, parity.num_best_moves_equal) == (count, count)
    assert 0 < parity.max_log_prob_difference < 1e-5
    assert parity.is_met


def test_the_export_reads_back_as_the_same_weights(exported: tuple[Path, Parity], policy: NetworkPolicy, source: Path) -> None:
    folder, _ = exported
    loaded, config = load_policy(folder, CPU)
    assert config == TINY
    assert weights_hash(loaded) == weights_hash(policy) == read_json(folder / "policy.json")["weights_hash"]
    assert sha256_file(folder / "weights.safetensors") == sha256_file(source / "weights.safetensors")
    assert read_json(folder / "policy.json")["weights_file"]["sha256"] == sha256_file(source / "weights.safetensors")


def test_the_action_table_is_written_whole_and_in_order(exported: tuple[Path, Parity]) -> None:
    actions = read_json(exported[0] / "policy.json")["actions"]
    assert len(actions) == 1_968
    assert actions == [move.uci() for move in ACTIONS]


def strangers_encoding(fen: str) -> list[int]:
    """Return the bytes of a position as `policy.json` describes them, written from that text alone."""
    placement, turn, castling, _, clock, _ = fen.split(" ")
    rows = ["".join("." * int(sign) if sign.isdigit() else sign for sign in row) for row in placement.split("/")]
    if turn == "b":
        rows = [row.swapcase() for row in reversed(rows)]
        castling = castling.swapcase()
    squares = [sign for row in reversed(rows) for sign in row]  # a1 first.
    board = chess.Board(fen)
    en_passant = {chess.square_file(move.to_square) + 1 for move in board.legal_moves if board.is_en_passant(move)} or {0}
    return [*(" PNBRQKpnbrqk".find(sign) if sign != "." else 0 for sign in squares), *(right in castling for right in "KQkq"),
            en_passant.pop(), min(int(clock), 100), turn == "b"]  # fmt: skip


def test_a_stranger_who_reads_the_description_gets_the_same_bytes_and_moves(exported: tuple[Path, Parity]) -> None:
    facts = read_json(exported[0] / "policy.json")
    session = onnxruntime.InferenceSession(exported[0] / ONNX, providers=["CPUExecutionProvider"])
    assert len(facts["examples"]) == 3
    for example in facts["examples"]:
        fen = example["fen"]
        assert strangers_encoding(fen) == example["encoding"]
        feeds = {"encodings": np.array([example["encoding"]], dtype=np.uint8), "action_ids": np.array([ids := example["legal_action_ids"]])}
        feeds["repeats"] = np.zeros((1, len(ids)), dtype=np.bool_)
        legal = session.run(["logits"], feeds)[0][0].astype(np.float64)
        log_probs = legal - np.log(np.exp(legal).sum())
        np.testing.assert_allclose(log_probs, example["log_probs"], atol=1e-5)
        moves = [facts["actions"][index] for index in example["legal_action_ids"]]
        if fen.split(" ")[1] == "b":
            moves = [move.translate(str.maketrans("12345678", "87654321")) for move in moves]
        assert moves == example["legal_moves"]
        assert sorted(moves) == sorted(move.uci() for move in chess.Board(fen).legal_moves)
        assert moves[int(log_probs.argmax())] == example["best_move"]


def test_the_example_in_the_docs_runs_as_it_stands(exported: tuple[Path, Parity], tmp_path: Path) -> None:
    (tmp_path / "my_model").symlink_to(exported[0])
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "playing.md").read_text(), re.DOTALL)
    printed = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    move, _, best = printed.split()
    assert move == best


def test_the_strangers_encoding_is_ours_for_all_kinds_of_positions() -> None:
    for board in BOARDS:
        assert strangers_encoding(board.fen()) == encode([board])[0].tolist()


def test_the_examples_show_both_colours_en_passant_castling_rights_and_promotions(exported: tuple[Path, Parity]) -> None:
    boards = [chess.Board(example["fen"]) for example in read_json(exported[0] / "policy.json")["examples"]]
    moves = [(board, move) for board in boards for move in board.legal_moves]
    assert {board.turn for board in boards} == {chess.WHITE, chess.BLACK}
    assert any(board.is_en_passant(move) for board, move in moves)
    assert any(board.is_castling(move) for board, move in moves)
    assert {move.promotion for _, move in moves} == {None, chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN}
    assert any(chess.popcount(board.castling_rights) not in (0, 4) for board in boards)


def test_the_onnx_file_takes_any_number_of_boards_and_of_moves(exported: tuple[Path, Parity], policy: NetworkPolicy) -> None:
    for count in (1, 2, 17):
        positions = PositionBatch.from_boards(BOARDS[:count])
        with torch.no_grad():
            expected = policy.network(*positions.inputs)
        logits = raw_logits(exported[0] / ONNX, positions)
        assert logits.shape == expected.shape
        torch.testing.assert_close(logits[positions.is_legal], expected[positions.is_legal], rtol=0, atol=1e-5)


def test_the_onnx_policy_gives_the_policys_distribution_at_any_temperature_and_with_a_history(
    exported: tuple[Path, Parity], policy: NetworkPolicy
) -> None:
    shuffled = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1"):
        shuffled.push_uci(move)  # f6g8 now returns to the first position.
    boards = [shuffled, *BOARDS]
    positions = PositionBatch.from_boards(boards)
    assert positions.repeats[0].any()
    for temperature in (0.5, 2.0):
        with torch.no_grad():
            expected = policy.distribution(positions, temperature=temperature)
        found = OnnxPolicy(exported[0] / ONNX).log_probs(boards, temperature=temperature)
        for row, legal, each in zip(expected.log_probs, positions.is_legal, found, strict=True):
            torch.testing.assert_close(torch.from_numpy(each).float(), row[legal], rtol=0, atol=1e-5)


def test_the_onnx_file_says_what_it_is_and_nothing_of_the_machine(exported: tuple[Path, Parity], policy: NetworkPolicy) -> None:
    content = (exported[0] / ONNX).read_bytes()
    model = onnx.load(exported[0] / ONNX)
    assert {entry.key: entry.value for entry in model.metadata_props} == {
        "run": "a run",
        "policy_step": "7",
        "weights_hash": weights_hash(policy),
    }
    assert "uint8" in model.doc_string
    assert b"site-packages" not in content
    assert b".py" not in content
    assert str(Path(__file__).parents[3]).encode() not in content


@pytest.mark.prove
def test_equal_weights_give_equal_bytes(exported: tuple[Path, Parity], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_onnx(tmp_path / ONNX, lively(0), TINY, {"run": "a run", "policy_step": 7, "weights_hash": weights_hash(lively(0))})
    assert (tmp_path / ONNX).read_bytes() == (exported[0] / ONNX).read_bytes()


def broken(path: Path, name: str, spoil: Any, target: Path) -> Path:
    """Write an ONNX file in which one tensor of the weights is another."""
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(spoil(numpy_helper.to_array(tensor)), name))
    onnx.save(model, target)
    return target


def test_a_small_error_in_one_bias_is_found_though_all_best_moves_are_equal(
    exported: tuple[Path, Parity], policy: NetworkPolicy, tmp_path: Path
) -> None:
    path = broken(exported[0] / ONNX, "hidden.bias", lambda bias: bias + np.float32(2e-3), tmp_path / ONNX)
    parity = onnx_parity(path, policy, BOARDS)
    assert parity.num_best_moves_equal == parity.num_positions
    assert not parity.is_met


def test_other_best_moves_are_found_however_wide_the_tolerance(
    exported: tuple[Path, Parity], policy: NetworkPolicy, tmp_path: Path
) -> None:
    path = broken(exported[0] / ONNX, "hidden.weight", lambda weight: weight[::-1].copy(), tmp_path / ONNX)
    parity = onnx_parity(path, policy, BOARDS, tolerance=1e9)
    assert parity.num_best_moves_equal < parity.num_positions
    assert not parity.is_met


def test_numbers_that_are_none_are_no_parity(exported: tuple[Path, Parity], policy: NetworkPolicy, tmp_path: Path) -> None:
    path = broken(exported[0] / ONNX, "hidden.bias", lambda bias: bias * np.float32(np.nan), tmp_path / ONNX)
    assert not onnx_parity(path, policy, BOARDS).is_met


def test_nothing_is_written_when_parity_fails(
    exported: tuple[Path, Parity], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    path = broken(exported[0] / ONNX, "hidden.bias", lambda bias: bias + np.float32(0.5), tmp_path / ONNX)
    monkeypatch.setattr(exporting, "write_onnx", lambda target, *_: shutil.copy(path, target))
    monkeypatch.setattr(exporting, "random_play_positions", lambda *_, **__: BOARDS)
    assert main(["export", str(source), str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "policy.onnx does not play as the policy" in said
    assert "Nothing is written" in said
    assert not (tmp_path / "out").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [ONNX]


def test_nothing_is_written_when_the_weights_read_back_otherwise(
    exported: tuple[Path, Parity], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_and_spoil(target: Path, *_: Any) -> None:
        shutil.copy(exported[0] / ONNX, target)
        save_policy(target.parent, lively(1), TINY)

    monkeypatch.setattr(exporting, "write_onnx", copy_and_spoil)
    monkeypatch.setattr(exporting, "random_play_positions", lambda *_, **__: BOARDS)
    with pytest.raises(ParityError, match="reads back"):
        export_policy(source, tmp_path, facts={})


def test_parity_positions_are_distinct_legal_of_both_colours_and_all_phases() -> None:
    boards = random_play_positions(1_000, seed=0)
    assert len({position_key(board) for board in boards}) == 1_000
    assert all(board.is_valid() and legal_action_ids(board) for board in boards)
    assert {board.turn for board in boards} == {chess.WHITE, chess.BLACK}
    assert {phase_of(board) for board in boards} == set(PHASES)
    assert any(board.is_check() for board in boards)
    assert any(move.promotion for board in boards for move in board.legal_moves)


def test_parity_positions_depend_on_the_seed_alone() -> None:
    one, again, other = ([board.fen() for board in random_play_positions(50, seed=seed)] for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_parity_compares_legal_moves_only(exported: tuple[Path, Parity], policy: NetworkPolicy) -> None:
    positions = PositionBatch.from_boards(BOARDS)
    assert not positions.is_legal.all(), "the exported graph scores the padding too"
    assert raw_logits(exported[0] / ONNX, positions)[~positions.is_legal].isfinite().all()
    assert onnx_parity(exported[0] / ONNX, policy, BOARDS).num_best_moves_equal == len(BOARDS)


def test_the_command_writes_a_whole_folder_that_other_commands_take_for_a_model(
    exported: tuple[Path, Parity], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from steps.runs.find_policy import find_policy
    from steps.runtime.machine import Machine

    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(exporting, "write_onnx", lambda target, *_: shutil.copy(exported[0] / ONNX, target))
    monkeypatch.setattr(exporting, "random_play_positions", lambda *_, **__: BOARDS)
    assert main(["export", str(source), str(tmp_path / "out")]) == 0
    assert f"{len(BOARDS)} of {len(BOARDS)} best moves equal" in capsys.readouterr().out
    manifest = verified_manifest(tmp_path / "out")
    assert sorted(manifest["files"]) == ["README.md", "policy.json", ONNX, "weights.safetensors"]
    assert find_policy(str(tmp_path / "out"), Machine.here()).weights_hash == sha256_file(source / "weights.safetensors")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "its strength is unknown here" in card.lower()
    assert card.startswith('---\nlicense: "mit"\nlibrary_name: "onnx"\n')
    pytest.importorskip("huggingface_hub")
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert main(["export", str(source), str(tmp_path / "out"), "--push", "me/policy"]) == 0
    assert f"published: {hub.address}/me/policy" in capsys.readouterr().out
    assert hub.files["models/me/policy"].keys() == {*manifest["files"], "manifest.json"}


def test_a_folder_that_is_there_is_refused_before_any_work(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert main(["export", str(source), str(tmp_path / "out")]) == 1
    assert "already exists" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
