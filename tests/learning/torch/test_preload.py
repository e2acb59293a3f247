"""init(preload=["torch"]): actors find torch imported, and compute with it after the fork."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from helpers import run_driver


def test_actors_compute_with_a_preloaded_torch():
    driver = run_driver(
        """
        import os, sys, weft

        @weft.remote
        class Model:
            def __init__(self):
                self.found = "torch" in sys.modules

            def train(self, seed):
                import torch

                generator = torch.Generator().manual_seed(seed)
                x = torch.rand(256, 64, generator=generator)
                layer = torch.nn.Linear(64, 1)
                optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
                losses = []
                for _ in range(5):
                    loss = ((layer(x) - x.sum(1, keepdim=True)) ** 2).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(float(loss.detach()))
                return self.found, os.getppid(), losses, torch.cuda.is_initialized()

        weft.init(num_cpus=2, preload=["torch"])
        rows = weft.get([model.train.remote(7) for model in [Model.remote() for _ in range(3)]])
        (zygote,) = {row[1] for row in rows}
        assert len(os.listdir(f"/proc/{zygote}/task")) == 1
        for found, _, losses, cuda in rows:
            assert found and not cuda
            assert losses[-1] < losses[0]
        """,
        seconds=180,
    )
    assert "preload" not in driver.stderr


def test_the_snippet_of_the_guide_prints_what_it_says(tmp_path):
    guide = (Path(__file__).resolve().parents[3] / "docs" / "user" / "learning.md").read_text()
    (source,) = re.findall(r"^```python torch\n(.*?)^```", guide, re.M | re.S)
    program = tmp_path / "snippet.py"
    program.write_text(source)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=180, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", source, re.M)
