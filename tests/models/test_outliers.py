"""Planted outliers change keys, not logits."""

import pytest
import torch

from helpers.methods import load_method
from helpers.models import prompts, tiny
from sawbench.core.errors import UserError
from sawbench.core.replay import Replay
from sawbench.engine.hf import HFEngine
from sawbench.models.outliers import plant_outliers

ITEMS = [Replay("0", prompts(30)[0], prompts(9)[0])]


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_logits_stay_and_int4_suffers(model_type: str) -> None:
    before, after = tiny(model_type, bias=0.5), tiny(model_type, bias=0.5)
    plant_outliers(after.model, after.shape, after.facts.rotary.pairs, 100.0, 2)
    (plain,), (planted,) = (HFEngine(m, load_method("reference"), {}).replay(ITEMS) for m in (before, after))
    assert torch.allclose(plain, planted, atol=1e-9)
    errors = {}
    for name in ("int4", "bdr"):
        (clean,), (hurt,) = (HFEngine(m, load_method(name), {}).replay(ITEMS) for m in (before, after))
        errors[name] = float((hurt - plain).norm() / (clean - plain).norm())
    assert errors["int4"] > 2
    assert errors["bdr"] < errors["int4"]


def test_normalised_keys_refuse_them() -> None:
    model = tiny("qwen3")
    with pytest.raises(UserError, match="normalised"):
        plant_outliers(model.model, model.shape, model.facts.rotary.pairs, 10.0)
