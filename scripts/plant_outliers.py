"""Write a copy of a model with planted key outliers: ``python scripts/plant_outliers.py smollm2-135m 64 FOLDER``.

Run it with ``model.path=FOLDER model.name=NAME`` under a name that says what it is.
"""

import argparse
from pathlib import Path

import torch

from sawbench.config import group_config
from sawbench.models import load_model, plan_model
from sawbench.models.outliers import plant_outliers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a name of configs/model")
    parser.add_argument("factor", type=float, help="keys times it, queries divided by it")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", help="a local folder or .gguf file in place of the named model's own")
    parser.add_argument("--pairs", type=int, default=1, help="rotary pairs of each KV head")
    options = parser.parse_args()
    config = group_config("model", options.model)
    config.path = options.weights or config.path
    loaded = load_model(plan_model(config), torch.device("cpu"), torch.float32)
    plant_outliers(loaded.model, loaded.shape, loaded.facts.rotary.pairs, options.factor, options.pairs)
    loaded.model.save_pretrained(options.folder)
    loaded.tokenizer.save_pretrained(options.folder)
    print(options.folder)


if __name__ == "__main__":
    main()
