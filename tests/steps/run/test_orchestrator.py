"""Metaflow's configuration and service are examined before Metaflow reports a fault in them by a traceback."""

import json
from pathlib import Path

import pytest
from metaflow import metaflow_config

from steps.run.orchestrator import OrchestratorError, configuration, service


@pytest.mark.parametrize(
    ("content", "profile", "reason"),
    [
        (None, "work", r"METAFLOW_PROFILE=work: there is no .*config_work.json; unset METAFLOW_PROFILE.*\(home\)"),
        ("{", "", "cannot be read"),
        ("[]", "", "is not a JSON object"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_named_with_the_remedy(
    content: str | None, profile: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "config_home.json").write_text("{}")
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(OrchestratorError, match=reason):
        configuration({"METAFLOW_HOME": str(tmp_path), "METAFLOW_PROFILE": profile})


def test_a_configuration_that_is_there_or_not_needed_is_fine(tmp_path: Path) -> None:
    assert "no configuration" in configuration({"METAFLOW_HOME": str(tmp_path)})
    (tmp_path / "config_work.json").write_text(json.dumps({"METAFLOW_USER": "me"}))
    assert configuration({"METAFLOW_HOME": str(tmp_path), "METAFLOW_PROFILE": "work"}).endswith("config_work.json")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (None, "METAFLOW_SERVICE_URL is not set"),
        ("http://127.0.0.1:1", "does not answer"),
        ("http://a..b", "does not answer"),
        ("nowhere", "does not answer"),
    ],
)
def test_a_metadata_service_that_is_set_and_does_not_answer_is_named(
    address: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metaflow_config, "DEFAULT_METADATA", "service")
    monkeypatch.setattr(metaflow_config, "SERVICE_URL", address)
    with pytest.raises(OrchestratorError, match=f"{reason}.*METAFLOW_DEFAULT_METADATA=local"):
        service()
