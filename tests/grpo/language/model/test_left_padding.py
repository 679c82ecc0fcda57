"""A row padded on the left is scored as the row itself; without the hook it is another."""

from pathlib import Path

import pytest
import torch
from made_models import gpt2, llama
from torch import nn
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from grpo.language.model.left_padding import count_positions_by_mask

PADS = 37


def of_folder(folder: Path) -> GPT2LMHeadModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def padded(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pads = torch.full((1, PADS), 7)
    return torch.cat([pads, ids], dim=1), torch.cat([torch.zeros_like(pads), torch.ones_like(ids)], dim=1)


@pytest.mark.parametrize("make", [gpt2, llama], ids=["absolute", "rotary"])
def test_padding_on_the_left_changes_no_score(make, tmp_path: Path) -> None:
    model = of_folder(make(tmp_path))
    count_positions_by_mask(model)
    ids = torch.arange(20, 60)[None]
    row, mask = padded(ids)
    with torch.no_grad():
        alone, among = model(ids).logits, model(row, attention_mask=mask).logits[:, PADS:]
    assert torch.allclose(alone, among, atol=1e-4)


def test_given_positions_stay(tmp_path: Path) -> None:
    model = of_folder(gpt2(tmp_path))
    ids, mask = torch.arange(20, 30)[None], torch.ones(1, 10, dtype=torch.long)
    positions = torch.arange(50, 60)[None]
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, position_ids=positions).logits
        count_positions_by_mask(model)
        assert torch.equal(model(ids, attention_mask=mask, position_ids=positions).logits, expected)


def test_tokens_after_a_cache_go_on_counting(tmp_path: Path) -> None:
    """As a decoding step without positions of its own would ask: one new token, the mask of all."""
    model = of_folder(gpt2(tmp_path))
    count_positions_by_mask(model)
    row, mask = padded(torch.arange(20, 60)[None])
    with torch.no_grad():
        whole = model(row, attention_mask=mask).logits[:, -1]
        before = model(row[:, :-1], attention_mask=mask[:, :-1], use_cache=True)
        step = model(row[:, -1:], attention_mask=mask, past_key_values=before.past_key_values).logits[:, -1]
    assert torch.allclose(whole, step, atol=1e-4)


def test_positional_arguments_are_seen_too(tmp_path: Path) -> None:
    model = of_folder(gpt2(tmp_path))
    count_positions_by_mask(model)
    row, mask = padded(torch.arange(20, 60)[None])
    with torch.no_grad():
        assert torch.equal(model(row, None, mask).logits, model(row, attention_mask=mask).logits)


def test_a_model_that_takes_no_positions_is_left_as_it_is() -> None:
    class Plain(nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return input_ids * attention_mask

    model = Plain()
    count_positions_by_mask(model)
    assert torch.equal(model(torch.arange(3)[None], attention_mask=torch.ones(1, 3)), torch.arange(3.0)[None])


def test_installed_twice_it_is_the_same(tmp_path: Path) -> None:
    model = of_folder(gpt2(tmp_path))
    row, mask = padded(torch.arange(20, 60)[None])
    count_positions_by_mask(model)
    with torch.no_grad():
        once = model(row, attention_mask=mask).logits
        count_positions_by_mask(model)
        assert torch.equal(model(row, attention_mask=mask).logits, once)
