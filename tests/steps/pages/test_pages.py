"""The results of a run: what the document has, what people read of it, and what two runs say of each other."""

import re
from pathlib import Path

import pytest
from made_documents import CODE, ENGINE, FINDING, made_reports, made_results, match, write_outputs
from made_work import work_in

from grpo.base.documents import DocumentError
from grpo.base.files import write_json, write_manifest
from grpo.settings.names import declared
from grpo.settings.tree import Settings
from steps.cli.compare import comparison
from steps.names import MODEL_CARD, REPORT_PAGE, RESULTS
from steps.pages.results import Results, read_results
from steps.pages.templates import page, verdict_lines
from steps.report import STEP, body

NETWORK = {"policy": {"kind": "network", "network": "replies", "width": 64}}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return made_results(tmp_path)


def pages_of(results: Results) -> dict[str, str]:
    notes = {role: page("version", results=results, role=role) for role in ("champion", "peak")}
    texts = {name: page(name, results=results) for name in ("report", "description")}
    card = page("model_card", results=results, run="17", policy_step=100, described=NETWORK, hashes={"weights": "e" * 64})
    return {**texts, "card": card, "terminal": "\n".join(verdict_lines(results)), **notes}


def test_the_model_card_says_what_its_network_looks_at(results: Results) -> None:
    texts = {}
    for network in ("afterstates", "replies", "own"):
        described = {**NETWORK, "policy": {**NETWORK["policy"], "network": network}}
        texts[network] = page("model_card", results=results, run="17", policy_step=100, described=described, hashes={"weights": "e" * 64})
    replies = "and the likeliest moves also by the opponent's best reply."
    assert [replies in text for text in texts.values()] == [False, True, False]
    assert ["two small layers" in text for text in texts.values()] == [True, True, False]
    assert "grpo/policy/networks/own.py" in texts["own"]


def test_the_step_writes_the_document_and_the_page_that_is_made_of_it(tmp_path: Path) -> None:
    folders = write_outputs(tmp_path, made_reports())
    body(work_in(made := tmp_path / "made", declared(Settings(), STEP.reads), inputs=folders, facts={"origin": "17/60"}))
    results = read_results(made / RESULTS)
    assert (made / REPORT_PAGE).read_text() == page("report", results=results)
    assert "step 100" in (made / MODEL_CARD).read_text()
    assert (results.origin.run, results.origin.step) == ("17", 60)
    assert results.outputs.keys() == folders.keys()
    assert (results.settings["grpo.learning_rate"], results.engine) == (7e-4, ENGINE)
    assert results.findings.findings == (FINDING,)


def test_every_number_has_its_interval_its_games_and_its_yardstick(results: Results) -> None:
    found = {each.name: each for each in results.measurements}
    best = found["candidate against pretrained (best moves)"]
    assert (best.unit, best.estimate.value, best.num_games) == ("score", 0.75, 100)
    games = results.decision.confirmation_best_moves
    assert games is not None
    assert games.adjudicated is not None
    assert best.adjudicated == games.adjudicated
    assert best.output == results.outputs["select"]["output_hash"]
    assert best.yardstick["pretrained policy"] == results.outputs["pretrain"]["output_hash"]
    assert best.yardstick["evaluation.max_plies"] == "200"
    assert found["pretrained against Stockfish (1 node)"].yardstick["engine"] == ENGINE
    names = "candidate on the ladder", "pretrained on the ladder (openings of the candidate)"
    placed = [(found[name].estimate.low, found[name].estimate.value) for name in names]
    assert placed == [(240, 260), (220, 240)], "of the games of the ladder gain, and not the 250 of the baseline"
    # The half-width of 30 is a standard error of 30 / 2.178, and of 9.74 after both parts; 2.952 * 9.74 = 28.8.
    stopped = "Play stopped after 150 of at most 300 pairs per rung, because a difference was shown."
    said = f"{stopped} Such a test shows a true difference of 29 Elo in 80 % of the cases"
    assert said in " ".join(page("report", results=results).split())


def test_a_result_has_all_that_it_depends_on_besides_the_policy_as_its_yardstick(tmp_path: Path) -> None:
    reports = made_reports()
    reports["select"] |= {"previous_champion": match(0.75).model_dump(mode="json"), "previous_weights": "3" * 64}
    results = made_results(tmp_path, reports, book="hash of a book")
    rules = {"evaluation.max_plies": "200", "opening book": "hash of a book"}
    pretrained, ladder, boards = (
        {name: results.outputs[step]["output_hash"]}
        for name, step in {"pretrained policy": "pretrain", "ladder": "calibrate", "held-out boards": "join_boards"}.items()
    )
    assert {each.name: each.yardstick for each in results.measurements} == {
        "pretrained against a random mover": rules,
        "pretrained against Stockfish (1 node)": rules | {"engine": ENGINE},
        "pretrained on the ladder before GRPO (other openings)": ladder,
        "held-out regret of the pretrained policy": boards,
        "held-out regret of the candidate": boards,
        "candidate against pretrained (best moves)": rules | pretrained,
        "candidate against pretrained (sampled at T = 1)": rules | pretrained,
        "candidate against the champion before": rules | {"champion before": "3" * 64},
        "candidate less pretrained on the ladder": rules | pretrained | ladder,
        "pretrained on the ladder (openings of the candidate)": ladder,
        "candidate on the ladder": ladder,
    }
    # Seven pairs against each of two rungs, of both policies.
    assert {each.name: each.num_games for each in results.measurements}["candidate less pretrained on the ladder"] == 2 * 2 * 2 * 7


@pytest.mark.parametrize(("score", "weights"), [(0.75, "2"), (0.5, "1")])
def test_the_model_card_has_the_champions_weights_and_the_report_the_candidates_moves_also_of_one_that_is_not_promoted(
    score: float, weights: str, tmp_path: Path
) -> None:
    folders = write_outputs(tmp_path, made_reports(score=score))
    write_manifest(folders["join_boards"], {"step": "join_boards", "version": "", "code": CODE, "parts": {"settings": {"seed": 3}}})
    body(work_in(made := tmp_path / "made", declared(Settings(), STEP.reads), inputs=folders))
    assert re.findall(r"\b[12]{64}\b", (made / MODEL_CARD).read_text()) == [weights * 64]
    results = read_results(made / RESULTS)
    assert (results.quality["heldout/accuracy"], results.regret["endgame"]) == ((91.34, 92.0), (0.0469, 0.04))
    assert results.settings["seed"] == 4, "as the later steps have read it"


def test_a_document_of_other_code_is_refused_with_what_to_do(tmp_path: Path, results: Results) -> None:
    plain = results.model_dump(mode="json")
    for changed in (plain | {"format": 2}, plain | {"decision": plain["decision"] | {"peak_step": "many"}}):
        write_json(tmp_path / RESULTS, changed)
        with pytest.raises(DocumentError, match="run the flow again"):
            read_results(tmp_path / RESULTS)


def test_one_row_decides_and_is_marked_and_adjudicated_numbers_stand_in_a_column_of_their_own(results: Results) -> None:
    [deciding] = [each for each in results.measurements if each.decides]
    games = results.decision.confirmation_best_moves
    assert games is not None
    assert deciding.estimate == games.score
    [row] = re.findall(r"^\| [^|]+: decides \|.*", page("report", results=results), flags=re.MULTILINE)
    _, _, played, _, judged, _ = row.split("|")
    assert (played.split()[0], judged.split()[0]) == ("0.750", "1.000")
    assert [label.endswith("decides") for label in results.decision.gains] == [True, False, False, False]
    for name in ("report", "description", "card", "terminal"):
        assert "own start, as played: decides" in pages_of(results)[name]


def test_every_page_has_the_champions_games_in_words_and_the_quality_of_its_moves(results: Results) -> None:
    assert results.strength.startswith("The champion beats a random mover (won ")
    shown = {name: " ".join(text.split()) for name, text in pages_of(results).items() if name != "peak"}
    assert [name for name, text in shown.items() if results.strength not in text] == []
    for name in ("report", "card"):
        assert "| ACPL | 45 | | | accuracy | 91.3% | 92.0% | | blunders | 4.1% | 3.2% |" in shown[name]


EVIL = "<script>alert(1)</script> [x](javascript:y) | `z` ![i](j) _a_ **b** ~~c~~\n# Heading {{ }}"


def test_text_of_files_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    reports = made_reports()
    reports["join_boards"] |= {"sources": {EVIL: 1}, "labels": {EVIL: 1}}
    reports["finetune"] |= {"reason": EVIL, "message": EVIL}
    reports["calibrate"] |= {"engine": EVIL, "note": EVIL}
    reports["select"] |= {"sentence": EVIL}
    results = made_results(tmp_path, reports).model_copy(update={"engine": EVIL, "settings": {EVIL: EVIL, "seed": EVIL}})
    described = {"policy": {"kind": "network", "network": "replies", "width": EVIL}}
    card = page("model_card", results=results, run=EVIL, policy_step=1, described=described, hashes={EVIL: EVIL})
    for shown in (card, *(page(name, results=results, role="champion") for name in ("report", "report_card", "description", "version"))):
        for bad in ("<script", "](", "`z`", "_a_", "**b**", "~~"):
            assert bad not in shown, bad
        assert not re.search(r"^# Heading", shown, flags=re.MULTILINE)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


def test_data_are_a_setting_by_which_runs_are_compared(tmp_path: Path) -> None:
    """A3: runs on generated games and on files of an own PGN differ in nothing else."""
    own = made_reports()
    own["join_boards"] |= {"sources": {"own.pgn": 3_200, "b.pgn": 50, "c.pgn": 25, "d.epd": 25}}
    first, second = made_results(tmp_path / "a"), made_results(tmp_path / "b", own)
    same, *_ = comparison(first, first)
    assert same == f"Same data: 3,300 boards of engine games; dataset {first.dataset.output_hash[:12]}"
    assert list(comparison(first, second))[:3] == [
        "Data differ:",
        f"  A: {first.dataset}",
        f"  B: 3,300 boards of own.pgn, b.pgn, c.pgn and 1 more; dataset {second.dataset.output_hash[:12]}",
    ]
    assert f"Trained on 3,300 boards of own.pgn, b.pgn, c.pgn and 1 more; dataset {second.dataset.output_hash[:12]}" in page(
        "version", results=second, role="champion"
    )


def test_what_has_one_yardstick_is_compared_and_the_rest_is_named_with_the_reason(tmp_path: Path) -> None:
    other = made_reports(score=0.5)
    other["pretrain"] |= {"top1": 0.31}
    other["baseline"]["heldout"] |= {"heldout/regret_best": 0.08}
    other["baseline"]["matches"]["random"] |= {"score": {"value": 0.25, "low": 0.2, "high": 0.3}}
    first, second = made_results(tmp_path / "a"), made_results(tmp_path / "b", other)
    lines = list(comparison(first, second))
    assert not any("independent samples" in line for line in lines), "boards and openings are shared"
    [row] = [line for line in lines if "pretrained against a random mover" in line]
    assert re.search(r" 0\.750 +0\.250 +\+0\.500 \[.*A is better", row)
    [row] = [line for line in lines if "held-out regret of the pretrained policy" in line]
    assert "A is better" in row, "a lower regret is better"
    [row] = [line for line in lines if "pretrained against Stockfish (1 node)" in line]
    assert "is better" not in row, "the same number"
    assert re.search(r"another or unknown pretrained policy: [^;]*candidate against pretrained \(best moves\)", lines[-1])
    assert "held-out regret of the candidate" in lines[-2]
    assert len("\n".join(lines).splitlines()) <= 25


def test_settings_are_compared_by_their_values_and_books_by_their_content(tmp_path: Path) -> None:
    shares = [[1.0, second, *[0.5] * 14, 0.01] for second in (0.9, 0.8)]
    folders = [f"/models/{'long/' * 12}{name}" for name in "ab"]
    first, second = (
        made_results(tmp_path / name, made_reports(elo=elo), book=name).model_copy(
            update={"settings": {"evaluation.ladder_fractions": each, "language.model": folder, "grpo.group_size": 8 * (1 + index)}}
        )
        for index, (name, elo, each, folder) in enumerate(zip("ab", (10, 20), shares, folders, strict=True))
    )
    lines = list(comparison(first, second))
    told = dict(re.findall(r"^  (.*?): A (.*, B .*)", "\n".join(lines), re.MULTILINE))
    assert told["grpo.group_size"] == "8, B 16"
    assert told["language.model"] == ", B ".join(folders), "shortened, both would look alike"
    assert told["evaluation.ladder_fractions"] == ", B ".join(map(str, shares))
    assert re.search(r"another or unknown opening book: [^;]*candidate against pretrained \(best moves\)", lines[-1])
    same = "\n".join(comparison(first, made_results(tmp_path / "c", made_reports(elo=20), book="a")))
    assert "opening book" not in same


def test_the_strength_of_a_policy_is_what_its_games_have_shown_and_the_same_in_the_registry(tmp_path: Path) -> None:
    results = made_results(tmp_path)
    told = {step: results.decision.strength(step) for step in (0, 100, 250, 7)}
    assert told[0] == "It is the start of its run, without GRPO; +240 Elo [+180, +300] above a random mover, on the ladder of its run."
    assert told[100].startswith("+191 Elo [")
    assert "against its own start; +260 Elo [+200, +320] above" in told[100]
    rows = re.findall(r"^(pretrained|step 100) .*\] +(.*)$", "\n".join(verdict_lines(results)), re.MULTILINE)
    assert rows == [("pretrained", "+240 [+180, +300]"), ("step 100", "+260 [+200, +320]")], "as the ladder's table"
    assert "in screening games, which overestimate the best step; it was not rated" in told[250]
    assert told[7] == "It played no game; it was not rated on the ladder."
    for role in ("champion", "peak"):
        assert told[100] in page("version", results=results, role=role)


def test_whether_a_candidate_is_champion_of_its_run_alone_is_said(results: Results) -> None:
    def outcome(*, promoted: bool, replaces_previous: bool) -> str:
        return results.decision.model_copy(update={"promoted": promoted, "replaces_previous": replaces_previous}).outcome

    assert outcome(promoted=False, replaces_previous=False) == "the pretrained policy stays champion"
    assert outcome(promoted=True, replaces_previous=True) == "step 100 is champion"
    assert outcome(promoted=True, replaces_previous=False).startswith("step 100 is this run's champion; the registry's champion stays")
