"""What the diagnosis found in a real run: in the output of `finetune`, and as tags on its tracked run and on the parent."""

from pathlib import Path
from typing import Any

from real_flow import FlowRun

from grpo.base.files import read_json
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import History
from grpo.settings.tree import read_settings
from steps.step_io.names import FINDINGS
from steps.step_io.work import read_history
from steps.tracking.tags import FOUND, STEP


def test_a_real_run_of_the_smallest_preset_is_healthy_by_its_output_and_by_its_tags(first_run: FlowRun, tracking: Any) -> None:
    folder = first_run.folder(first_run.data.finetuned)
    found = read_json(folder / FINDINGS)
    settings = {"grpo": read_settings("test").grpo.model_dump(mode="json")}
    assert found == {**diagnose(History.of_records(read_history(folder)), settings).facts(), "tag": "healthy"}
    runs = tracking.search_runs([tracking.get_experiment_by_name("chess-grpo").experiment_id])
    tagged = {run.data.tags[STEP]: run.data.tags[FOUND] for run in runs if FOUND in run.data.tags}
    assert tagged == {"flow": "healthy", "finetune": "healthy"}
    assert "finetune: diagnosis: healthy" in first_run.output
    [tuned] = [run for run in runs if run.data.tags[STEP] == "finetune"]
    assert Path(FINDINGS).name in {file.path for file in tracking.list_artifacts(tuned.info.run_id)}
