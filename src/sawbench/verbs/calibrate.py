"""``calibrate``: fit what a method learns from text, and say what was made and where."""

from pathlib import Path

from omegaconf import DictConfig

from sawbench.config import instantiate
from sawbench.engine.calibrate import find_or_make
from sawbench.methods.calibration import read
from sawbench.models import choose_device, choose_dtype, load_model, plan_model
from sawbench.verbs.table import table


def main(config: DictConfig) -> int:
    """Raises UserError, before weights load, for a model or method that is refused."""
    device = choose_device(config.device)
    plan = plan_model(config.model)
    method, text = instantiate(config.method, "method"), instantiate(config.calibration, "calibration")
    method.check(plan.facts)
    if not method.calibration_tokens:
        print(f"{method.name} needs no calibration")
        return 0
    text.describe()
    loaded = load_model(plan, device, choose_dtype(plan.dtype, device))
    artifact = find_or_make(method, loaded, text, Path(config.results))
    print(f"{'made' if artifact.made else 'found'}: {artifact.path}\n\n{summary(artifact.path)}")
    return 0


def summary(path: Path) -> str:
    """What an artifact holds: one row a kind of tensor and side, and where it came from."""
    tensors, record = read(path)
    kinds: dict[tuple[str, str], list[int]] = {}
    for key, tensor in tensors.items():
        side, _, name = key.split(".", 2)
        kinds.setdefault((side, f"{name} {tuple(tensor.shape)}"), []).append(tensor.nbytes)
    rows = [[side, kind, str(len(sizes)), f"{sum(sizes):,}"] for (side, kind), sizes in kinds.items()]
    origin = {"model": record["model"]["name"], **record["text"], "synthetic": record["synthetic"], **record["notes"]}
    lines = [f"{key}: {value}" for key, value in origin.items()]
    return "\n".join([table(["side", "tensor", "layers", "bytes"], rows), "", *lines])
