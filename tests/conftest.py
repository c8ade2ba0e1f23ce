"""For every test: no network, a GPU mark that skips itself, few threads, and every method by existing."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports a kernel

from helpers.methods import METHODS, SERVABLE, TOKENWISE, WINDOWED

NAMES = {"method_name": METHODS, "tokenwise_name": TOKENWISE, "windowed_name": WINDOWED, "servable_name": SERVABLE}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``method_name`` runs over every file of configs/method; for ``tokenwise_name`` over those
    whose tokens become bytes one by one, ``windowed_name`` the others, ``servable_name`` those that fit pages."""
    for name in NAMES.keys() & {*metafunc.fixturenames}:
        metafunc.parametrize(name, NAMES[name])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
