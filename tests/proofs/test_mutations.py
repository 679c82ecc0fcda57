"""Mutations: realistic faults of the code that decides. The tests that a mutation names pass without it and fail with it.

`python -m pytest -m prove -s tests/proofs/test_mutations.py` prints the table: file, fault, and the test that kills it. Where the `old`
text of a mutation has moved, take it along, or take another of its kind.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_NUM_AT_ONCE: Final = 2


class Mutation(NamedTuple):
    file: str
    old: str
    """Occurs exactly once."""
    new: str
    tests: str
    """File of the tests that kill it."""
    chosen: str
    """Words of `pytest -k` that choose them; all without."""


TABLE: Final = {
    "grpo/engine/move_values.py": [
        ("grpo/engine/move_values", "capped", "min(last_shallow, _next_below(lowest), key=value_of)", "_next_below(lowest)"),
        ("grpo/engine/move_values", "capped", "if shallow[move] != last_shallow:", "if True:"),
        ("grpo/engine/move_values", "capped", "score.value + 1 if score.value > 0", "score.value - 1 if score.value > 0"),
        ("grpo/engine/move_values", "draw_by_the_rules", "(*drawing_moves(board), *repeating_moves(board))", "drawing_moves(board)"),
    ],
    "grpo/train/self_play.py": [
        ("grpo/train/self_play", "excluded", "(key := position_key(board)) not in self.exclude", "(key := position_key(board))"),
        ("grpo/train/self_play", "stream", '"own_games", number, "openings")', '"own_games", "openings")'),
        ("grpo/train/self_play", "tiny_training", "temperature=TEMPERATURE, rng", "temperature=1.0, rng"),
        ("grpo/train/self_play", "odd_stride", "// _MAX_STATES_PER_GAME)) | 1", "// _MAX_STATES_PER_GAME))"),
    ],
    "steps/finetune.py": [
        ("promises/5_lost_machine_and_resume", "optimizer", "takes_optimizer=before == now", "takes_optimizer=True"),
        ("steps/training/training", "own_games", "position_key(decode(row)) for row", "decode(row).fen() for row"),
        ("steps/training/training", "judged", "split=Split.HELDOUT, strong=True)", "split=Split.HELDOUT)"),
        ("steps/training/training", "judged", "policy = reference.copied()", "policy = reference"),
    ],
    "steps/build_boards.py": [
        ("steps/dataset/build_boards", "same_on_every", ", seed=settings.seed, excluded=excluded)", ", seed=settings.seed)"),
        ("steps/dataset/build_boards", "one_task", "heldout_depth, MAX_LEGAL_MOVES)", "heldout_depth, NUM_DEEP)"),
    ],
    "grpo/train/probes.py": [
        ("grpo/train/self_play", "tiny_training", "(batch.weights * batch.state_weights[:, None])[is_real]", "batch.weights[is_real]"),
    ],
    "grpo/train/trainer.py": [
        ("grpo/train/trainer", "watched", "is_first=not taken)", "is_first=False)"),
        ("grpo/train/trainer", "finite_step_between", "                self.control.reset_skipped()\n", ""),
        ("grpo/train/trainer", "every_bit", "self._average is not None and has_learned", "self._average is not None"),
        ("grpo/train/self_play", "tiny_training", "mean.lerp_(weights, 1 - decay)", "mean.lerp_(weights, decay)"),
        ("grpo/train/self_play", "tiny_training", '"minibatches", self.num_steps_done, 0)', '"minibatches", 0)'),
    ],
    "grpo/train/states.py": [
        ("grpo/train/states", "stored_probabilities", "[:, None], mirrored, plain)", "[:, None], plain, plain)"),
    ],
    "grpo/train/network_problem.py": [
        ("grpo/train/trainer", "of_its_step", "temperature=knobs.temperature,", "temperature=config.temperature,"),
        ("grpo/train/trainer", "swapped", ".log(), -entropies)", ".log(), 0 * entropies)"),
        ("grpo/train/rollouts", "stream", "purpose, self.step, ply)", "purpose, self.step)"),
        ("grpo/train/self_play", "tiny_training", 'sampler.draw(positions, "replies", ply', 'sampler.draw(positions, "moves", ply'),
        ("grpo/train/self_play", "tiny_training", "uniforms[list(rows)][:, None]", "uniforms[: len(rows)][:, None]"),
        ("grpo/train/self_play", "tiny_training", ", is_member_BG=is_member.view(-1, size))", ")"),
    ],
    "steps/track/publish.py": [
        ("steps/track/publish", "refusal_is_told", "if not self._problems:", "if True:"),
        ("steps/track/registry", "logged_together", "key=lambda run: run.order)", "key=lambda run: -run.order)"),
        ("promises/1_killed_anywhere", "marked_as_such", "== str(attempt.number) and", "is not None and"),
        (
            "steps/track/publish",
            "lost_after",
            "child.data.metrics.keys(), ask_store=is_over)",
            "child.data.metrics.keys(), ask_store=False)",
        ),
    ],
    "grpo/match/ladder.py": [
        ("grpo/match/ladder", "mean", ".elo for games in probes) / num_players", ".elo for games in probes[:1])"),
        ("grpo/match/ladder", "first_look", "difference.low > 0 or difference.high < 0", "difference.low > 0"),
        ("grpo/match/ladder", "first_look", "z=first.z)", "z=Z95)"),
        ("grpo/match/ladder", "gap", "weights[base] -= 1", "weights[base] = 0"),
    ],
    "steps/screen.py": [
        ("steps/selection/selection", "each_stage_takes", "num_sampled_pairs, used, SAMPLED", "num_sampled_pairs, set(), SAMPLED"),
        ("steps/selection/selection", "weights_of_that_name", "first = candidates[candidate].player", "first = initial.player"),
        ("steps/selection/selection", "is_a_number", "math.isfinite(best + (sampled or 0.0))", "math.isfinite(best)"),
    ],
    "steps/confirm.py": [
        ("steps/selection/selection", "previous_champion", 'work.inputs["screen"] / PREVIOUS_POLICY if', 'work.inputs["pretrain"] if'),
        ("steps/selection/selection", "weights_of_that_name", "open_once(checkpoint(work, candidate_step))", "open_once(opponent)"),
    ],
    "steps/select.py": [
        (
            "steps/selection/selection",
            "weights_of_that_name",
            "for policy, name in zip(policies, player",
            "for policy, name in zip(policies[::-1], player",
        ),
        ("steps/selection/selection", "beside", "confirmed.pair_scores(adjudicated=True)", "confirmed.pair_scores()"),
    ],
    "steps/report.py": [
        ("steps/pages/pages", "yardstick", "yardstick=pretrained | rules | ladder,", "yardstick=pretrained | rules,"),
    ],
    "steps/run/outside.py": [
        ("steps/run/outside", "dataset_depends", '{file.name}": fingerprint(file)', '{file.name}": file.name'),
    ],
    "grpo/board/draws.py": [
        ("grpo/board/draws", "", "board.halfmove_clock >= 99 or", "board.halfmove_clock >= 100 or"),
    ],
    "grpo/train/objective.py": [
        ("grpo/train/objective", "by_hand", "to_reference, from_reference = new", "from_reference, to_reference = new"),
        ("grpo/train/objective", "by_hand", "1 - clip_low, 1 + clip_high)\n", "1 - clip_low, 1 + clip_low)\n"),
        ("grpo/train/objective", "metrics_of_sampled", "self.old.log_probs * self.temperature,", "self.old.log_probs,"),
        ("grpo/train/objective", "advantage", "rewards_BG.double(), 0.0)", "rewards_BG, 0.0)"),
        ("grpo/train/objective", "by_hand", "ratios - 1 - log_ratios", "ratios - 1 + log_ratios"),
    ],
    "grpo/policy/distribution.py": [
        ("grpo/policy/distribution", "precision", "logits_BA.float()", "logits_BA"),
        ("grpo/policy/distribution", "returns", "(action_ids[index] == action_id(move, board.turn))", "True"),
    ],
    "grpo/train/control.py": [
        ("grpo/train/control", "warms_up", "(steps_done + 1) / max(", "steps_done / max("),
        ("grpo/train/control", "warms_up", "step - self._first_step", "step"),
        ("grpo/train/control", "critical", "mean < self._critical", "mean <= self._critical"),
        ("grpo/train/control", "floor", "if entropy < settings.entropy_floor else 0", "if entropy <= settings.entropy_floor else 0"),
        ("grpo/train/control", "bound", '(name == "steps" or self._controllers[name].is_saturated)', '(name == "steps")'),
    ],
    "grpo/train/fitting.py": [
        ("grpo/train/imitation", "tiny_imitation", 'group["lr"] = rate(step)', 'group["lr"] = config.learning_rate'),
        ("grpo/train/imitation", "keeps_the_best", "step) < lowest:", "step) <= lowest:"),
    ],
    "grpo/train/imitation.py": [
        ("grpo/train/imitation", "tiny_imitation", "played[rows])", "played[: len(rows)])"),
        ("grpo/train/imitation", "tiny_imitation", "weight_decay=WEIGHT_DECAY", "weight_decay=0.0"),
        ("grpo/train/imitation", "tiny_imitation", '"reflection", step - 1)', '"reflection", 0)'),
    ],
    "grpo/match/regret.py": [
        ("grpo/match/regret", "size_of_a_batch", "values_BA = values[rows][:", "values_BA = values[: len(rows)][:"),
    ],
    "grpo/statistics/verdict.py": [
        ("grpo/statistics/verdict", "holm", "if not claims[0].is_shown:", "if not claims[-1].is_shown:"),
        ("grpo/statistics/verdict", "ladder", "claims[0].interval.high < _EVEN:", "claims[0].interval.value < _EVEN:"),
        (
            "grpo/statistics/verdict",
            "ladder",
            "LadderFinding.WORSE if self.played.high < 0",
            "LadderFinding.WORSE if self.played.value < 0",
        ),
    ],
    "grpo/statistics/phase_guard.py": [
        ("grpo/statistics/verdict", "phases_are_adjusted", "adjusted = holm([", "adjusted = list(["),
        ("grpo/statistics/verdict", "phases_are_adjusted", "float(mean <= tolerance)", "float(mean > tolerance)"),
    ],
    "grpo/statistics/halving.py": [
        ("grpo/statistics/verdict", "listed_first", "ranked = sorted(remaining, key", "ranked = sorted(reversed(remaining), key"),
        ("grpo/statistics/verdict", "first_candidate", "1 + score - of_first", "1 + of_first - score"),
    ],
    "grpo/statistics/ratings.py": [
        ("grpo/statistics/statistics", "its_weight", "information / information.sum()", "0 * information + 0.5"),
    ],
    "grpo/dataset/quotas.py": [
        ("grpo/dataset/quotas", "needed", "return any(self.missing[split", "return all(self.missing[split"),
        ("grpo/dataset/quotas", "fewer_boards", "== Split.TRAIN)) < states", "== Split.TRAIN)) <= states"),
        ("grpo/dataset/quotas", "fewer_boards", "if count < min(wanted[cell], LEAST_PER_CELL)", "if count < LEAST_PER_CELL"),
        ("grpo/dataset/quotas", "", "point -= fractions[split]", "pass"),
        ("grpo/dataset/quotas", "", "{Split.HELDOUT: 0, Split.VALIDATION: 1,", "{Split.HELDOUT: 3, Split.VALIDATION: 1,"),
        ("grpo/dataset/quotas", "", "if game.is_label[ply] and key not in self._excluded]", "if game.is_label[ply]]"),
    ],
    "grpo/dataset/table.py": [
        ("grpo/dataset/table", "", 'rows["strong_values" if strong else "values"]', 'rows["values"]'),
    ],
    "steps/run/store.py": [
        ("steps/run/store", "damaged", "of_output(verified_manifest(folder)", "of_output(read_manifest(folder)"),
        ("steps/run/store", "one_machine_made", '"reused": False})', '"reused": True})'),
    ],
    "steps/run/copies.py": [
        ("steps/run/store", "damaged", "if sha256_file(path) != digests[name]:", "if False:"),
    ],
    "grpo/base/door.py": [
        ("steps/track/registry", "no_path_below", "if folder.resolve() not in path.resolve().parents:", "if False:"),
        ("steps/track/registry", "outside_of_its_folder", '("", ".", "..")', '("",)'),
    ],
    "steps/run/records.py": [
        ("steps/run/records", "clocks", "tuple(reversed(attempts))", "tuple(sorted(attempts, key=lambda each: each.started))"),
        (
            "steps/run/records",
            "clocks",
            "key=lambda run: run.order, reverse=True)\n\n    def newest",
            "key=lambda run: run.started, reverse=True)\n\n    def newest",
        ),
        ("steps/run/records", "is_resumed", "self.over > self.reopened", "self.over >= self.reopened"),
    ],
    "steps/run/work.py": [
        ("steps/run/work", "digit", "if sha256_text(text)[:16] != seal[1].decode():", "if False:"),
    ],
    "steps/track/client.py": [
        ("steps/track/publish", "goes_to_no_address", "if store._file is None and (account :=", "if False and (account :="),
    ],
    "steps/run/versions.py": [
        ("steps/run/versions", "each_part", '"inputs": dict(inputs),', '"inputs": sorted(inputs),'),
        ("steps/run/versions", "kind_and_network", "policy.kind, policy.network)", 'policy.kind, "replies")'),
    ],
    "steps/track/registry.py": [
        ("steps/track/registry", "peak_goes", "(best.low or 0.0) >= offered.low)", "(best.low or 0.0) > offered.low)"),
        ("steps/track/registry", "peak_goes", "offered.high < _EVEN:", "offered.high > _EVEN:"),
        ("steps/track/registry", "leads_nowhere", 'facts = checked(_FACTS_FORM, tag, f"', 'facts = (lambda tag, _: tag)(tag, f"'),
        ("steps/track/registry", "outside_of_its_folder", "checked(_FILE_NAME_FORM, entry.path,", "str(entry.path or"),
        ("promises/5_lost_machine_and_resume", "not_the_peak", "if target.is_dir() and sha256", "if target.is_dir() or sha256"),
        ("promises/5_lost_machine_and_resume", "not_the_peak", "if sha256_json(file_hashes(files)) != version.files", "if False"),
    ],
    "steps/common/training_loop.py": [
        ("promises/5_lost_machine_and_resume", "optimizer", "(record.step - self._first) %", "record.step %"),
    ],
    "steps/job/resume.py": [
        ("promises/5_lost_machine_and_resume", "not_the_peak", "not step_of(step).is_inherited", "step_of(step).is_inherited"),
        ("promises/5_lost_machine_and_resume", "not_the_peak", 'str(verified_manifest(folder)["output_hash"])', '""'),
    ],
    "steps/job/task.py": [
        ("steps/job/task", "taken_over", "            task.store.open(output)  #", "            pass  #"),
        ("steps/job/task", "taken_over", "(output := task.inherited) is None", "(output := task.inherited) is not None"),
        ("steps/job/task", "taken_over", '"part": self.part.number, ', ""),
        ("steps/job/task", "taken_over", "origin_checkpoint(origin, self.store)[1]", 'origin["run"]'),
        ("steps/job/task", "told_to_end", "error.code == RESUMABLE", "error.code != RESUMABLE"),
    ],
    "grpo/dataset/labels.py": [
        ("steps/dataset/build_boards", "same_on_every", "sorted(first, key=sha256_text)", "sorted(first)"),
    ],
    "steps/join_boards.py": [
        ("steps/dataset/build_boards", "two_parts", "=settings.boards.max_per_game_and_phase", "=10_000"),
        ("steps/dataset/build_boards", "two_parts", "report.duplicates += num_joined_duplicates", "pass"),
    ],
}
"""File -> its mutations: room and name of the tests that kill one, words of `pytest -k` that choose among them, old text, new text."""
MUTATIONS: Final = [
    Mutation(file, old, new, "tests/{}/test_{}.py".format(*tests.rsplit("/", 1)), chosen)
    for file, rows in TABLE.items()
    for tests, chosen, old, new in rows
]


def _copy(target: Path) -> Path:
    return shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info"))


def _run(tree: Path, tests: str, chosen: str) -> tuple[int, str]:
    """Run tests of a copy with the code of that copy, and return pytest's exit code and what it says."""
    choice = ["-k", chosen] if chosen else []
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", tests, *choice]
    temporary = tree.parent / f"{tree.name}.tmp"
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree), "TMPDIR": str(temporary)}
    told = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return told.returncode, told.stdout + told.stderr


def _mutated(tree: Path, mutation: Mutation) -> tuple[int, str]:
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return _run(tree, mutation.tests, mutation.chosen)
    finally:
        path.write_text(text, encoding="utf-8")


def test_every_old_text_occurs_once_and_every_new_text_is_python() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, mutation
        compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")


@pytest.mark.prove
def test_the_tests_that_a_mutation_names_pass_without_it_and_fail_with_it(tmp_path: Path) -> None:
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(_NUM_AT_ONCE):
        trees.put(_copy(tmp_path / str(number)))

    def on_a_tree(work: Callable[[Path], tuple[int, str]]) -> tuple[int, str]:
        tree = trees.get()
        try:
            return work(tree)
        finally:
            trees.put(tree)

    chosen: dict[str, set[str]] = {}
    for mutation in MUTATIONS:
        chosen.setdefault(mutation.tests, set()).add(mutation.chosen)
    # Of a file of which one mutation takes all tests, all.
    words = {tests: "" if "" in each else " or ".join(sorted(each)) for tests, each in chosen.items()}
    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        sound = list(pool.map(lambda tests: on_a_tree(lambda tree: _run(tree, tests, words[tests])), words))
        assert [told for code, told in sound if code != 0] == [], "red without any mutation"
        survived = []
        killed = pool.map(lambda mutation: on_a_tree(lambda tree: _mutated(tree, mutation)), MUTATIONS)
        for mutation, (code, told) in zip(MUTATIONS, killed, strict=True):
            killer = re.search(r"^FAILED \S+::(\S+)", told, re.MULTILINE)
            is_killed = code == 1 and killer is not None  # 2 and more: pytest could not collect or run them.
            by = killer[1] if killer else f"exit code {code}"
            print(f"{mutation.file}: {mutation.old.strip()} -> {mutation.new.strip()}: {by}", flush=True)
            survived += [] if is_killed else [(mutation, code, told[-1_000:])]
    assert survived == []
