"""Type checkers see what users should see: tests/typing/*.py under mypy and pyright.

A line that ends in `# error` must be reported by both, `# error[mypy]` or `# error[pyright]` by that one alone, and no
other line may be. `assert_type` in the samples makes a wrong type an error, too.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import weft

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = sorted((ROOT / "tests/typing").glob("*.py"))
PACKAGE = Path(weft.__file__).parent
MARK = re.compile(r"# error(?:\[(\w+)\])?")


def expected(checker):
    lines = {}
    for sample in SAMPLES:
        for number, line in enumerate(sample.read_text().splitlines(), 1):
            mark = MARK.search(line)
            if mark and mark[1] in (None, checker):
                lines[sample.name, number] = line.strip()
    return lines


def compare(checker, reported):
    """reported: (file, line) -> messages."""
    marked = expected(checker)
    missed = [f"{at[0]}:{at[1]}: nothing was reported: {line}" for at, line in marked.items() if at not in reported]
    unexpected = [f"{at[0]}:{at[1]}: {texts}" for at, texts in reported.items() if at not in marked]
    assert not missed and not unexpected, "\n".join([*missed, *unexpected])


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def test_there_are_samples():
    assert len(SAMPLES) >= 2
    assert sum(len(expected(checker)) for checker in ("mypy", "pyright")) > 50


def run_mypy(*arguments):
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--show-error-codes", "--no-error-summary"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT / "tests")


@needs("mypy")
def test_mypy():
    result = run_mypy("--config-file=", "--no-pretty", *SAMPLES)
    assert result.returncode == 1, result.stdout + result.stderr
    reported = {}
    for path, number, text in re.findall(r"^(\S+?):(\d+): error: (.*)$", result.stdout, re.M):
        reported.setdefault((Path(path).name, int(number)), []).append(text)
    compare("mypy", reported)


@needs("mypy")
def test_the_stubs_are_consistent():
    # Overloads that overlap are meant: the first that fits is taken.
    options = ("--config-file=", "--follow-imports=silent", "--disable-error-code=overload-overlap")
    result = run_mypy(*options, *sorted((ROOT / "python/weft").glob("*.pyi")))
    assert result.returncode == 0, result.stdout + result.stderr


@needs("pyright")
def test_pyright(tmp_path):
    for sample in SAMPLES:
        shutil.copy(sample, tmp_path)
    settings = {"include": [sample.name for sample in SAMPLES], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    reported = {}
    for diagnostic in json.loads(result.stdout)["generalDiagnostics"]:
        at = (Path(diagnostic["file"]).name, diagnostic["range"]["start"]["line"] + 1)
        if diagnostic["severity"] == "error":
            reported.setdefault(at, []).append(diagnostic["message"])
    compare("pyright", reported)


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_calls.pyi").exists()
