"""The diagnosis on made logs in the styles of TRL, verl, SB3, OpenRLHF, W&B and ours, of a seed and styles that no threshold was set on."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_diagnosis import FIELD_NOTES
from trainer_logs import HEALTHY, KEPT_BACK, SICK, Kind, styles_of, write_log

from grpo.diagnosis import case, rules_entropy, rules_objective, rules_reward, rules_stability, rules_strength
from grpo.diagnosis.diagnose import RULES, diagnose
from grpo.diagnosis.findings import Severity
from grpo.diagnosis.quantities import names_of
from grpo.diagnosis.reading import read_run_history

SEED = 2_000
MAX_ROWS = 250
"""Longer logs are left to benchmarks/diagnosis.py."""
KINDS = [kind for kind in (*HEALTHY, *SICK) if kind.min_rows < MAX_ROWS]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_healthy_log_raises_no_alarm_and_a_sick_one_is_named_rightly(kind: Kind, tmp_path: Path) -> None:
    limit = max(kind.min_rows + 10, min(kind.max_rows, MAX_ROWS))
    styles = sorted(styles_of(kind), key=lambda style: style.name not in KEPT_BACK)[:2]
    for style in styles:
        tables, evaluations = write_log(tmp_path, replace(kind, max_rows=limit), style, SEED)
        history = read_run_history(tables, evals=evaluations)
        found = {finding.name for finding in diagnose(history).findings if finding.severity != Severity.NOTE}
        assert found & kind.expected if kind.expected else not found, (style.name, found)


def test_every_rule_is_met_by_a_made_log_or_a_run_of_the_notes() -> None:
    ours_alone = {"wrong_gradient", "failed_values"}  # By what only our trainer measures.
    by_games = {"regret_without_strength"}
    noted = set.union(*(shown | recorded for _, _, shown, recorded in FIELD_NOTES.values()))
    assert RULES.keys() == set.union(*(set(kind.expected) for kind in SICK)) | noted | ours_alone | by_games


def test_every_quantity_that_is_looked_at_has_a_rule() -> None:
    modules = (case, rules_entropy, rules_objective, rules_reward, rules_stability, rules_strength)
    code = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules)
    families = ("logit_share/", "logit_gradient/", "logit_cosine/")
    saturated = {"entropy_saturated", "kl_saturated"}
    unread = [name for name, _, _ in names_of() if f'"{name}"' not in code and not name.startswith(families) and name not in saturated]
    assert unread == []
    assert all(f'f"{family}' in code for family in families)
    assert 'f"{name}_saturated"' in code
