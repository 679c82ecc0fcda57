"""The command `cost`: what a language model's GRPO needs, told before anything is loaded."""

import pytest

from steps.cli.main import main

ROOKWORLD = ["--config", "language", "--set", 'language.model="jrahn/RookWorld-LM-124M"', "--set", "language.cloning.num_steps=0"]


def test_a_known_model_is_computed_without_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *ROOKWORLD, "--teraflops", "20"]) == 0
    shown = capsys.readouterr().out
    assert "124,439,808 parameters; 64 answers of 144 tokens" in shown
    assert "at 20 TFLOP/s" in shown


def test_an_adapter_is_all_that_has_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="the extra for language models is not installed: pip install '.[language]'")
    assert main(["cost", *ROOKWORLD, "--set", "language.lora.rank=16"]) == 0
    shown = capsys.readouterr().out
    assert f"124,439,808 parameters, {16 * 12 * 16 * 768:,} more in LoRA's adapter" in shown
    assert "gradients                                        0.01 GiB" in shown


def test_what_does_not_fit_is_told_with_a_remedy_and_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *ROOKWORLD, "--memory", "80"]) == 0
    assert "fit into 80 GiB" in capsys.readouterr().out
    assert main(["cost", *ROOKWORLD, "--memory", "2"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "do not fit into 2 GiB" in shown
    assert "language.answers_per_forward" in shown


def test_the_small_model_has_the_shape_that_the_settings_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="the extra for language models is not installed: pip install '.[language]'")
    from grpo.language.model.small_gpt2 import new_small_model
    from grpo.language.text.tokenizer import chess_tokenizer
    from grpo.settings.language import SmallModelConfig

    assert main(["cost", "--config", "language-test"]) == 0
    small = new_small_model(SmallModelConfig(width=96, num_layers=2), chess_tokenizer(), seed=0)
    assert f"{sum(weights.numel() for weights in small.parameters()):,} parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [([], "cost is only for language models"), ([*ROOKWORLD, "--teraflops", "0"], "--teraflops 0: give a number above 0")],
)
def test_what_cannot_be_computed_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *words]) == 1
    assert reason in " ".join(capsys.readouterr().err.split())
