"""What runs the kernels: a GPU and which of its abilities they may use, or Triton's interpreter."""

import torch
import triton


def interpreted() -> bool:
    """True where Triton runs kernels in its interpreter, whose bf16 arithmetic and dots are wrong."""
    return bool(triton.knobs.runtime.interpret)


def inline_ptx(device: torch.device) -> bool:
    """Whether ``device`` takes the fast path: an NVIDIA GPU whose matrix units know bf16."""
    return (
        device.type == "cuda"
        and not interpreted()
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(device)[0] >= 8
    )


def overlaps(device: torch.device) -> bool:
    """Whether a launch may begin before the one before it ends (programmatic dependent launch: Hopper and later)."""
    return inline_ptx(device) and torch.cuda.get_device_capability(device)[0] >= 9
