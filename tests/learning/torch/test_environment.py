"""The environment is what scripts/learning-env promises: torch on the CPU, weft of this tree, packages outside it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import weft
from helpers import run_driver

ROOT = Path(__file__).resolve().parents[3]


def test_weft_is_the_one_of_this_tree_and_torch_is_not():
    assert Path(weft.__file__).resolve().is_relative_to(ROOT / ".venv")
    assert not Path(torch.__file__).resolve().is_relative_to(ROOT)


def test_torch_computes_in_driver_and_workers():
    driver = run_driver("""
        import json, torch, weft

        @weft.remote
        def gradient(x):
            layer = torch.nn.Conv2d(1, 2, 3)
            torch.nn.init.ones_(layer.weight)
            layer(torch.from_numpy(x.copy())).sum().backward()
            return layer.weight.grad.numpy(), torch.cuda.is_available()

        weft.init(num_cpus=2)
        values, cuda = weft.get(gradient.remote(torch.ones(1, 1, 5, 5).numpy()))
        print(json.dumps([values.tolist(), cuda]))
    """)
    values, cuda = json.loads(driver.stdout)
    assert values == [[[[9.0] * 3] * 3]] * 2
    assert cuda is False
