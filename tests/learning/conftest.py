"""What the tests with learning frameworks share. They run in environments of their own: `make test-learning`.

Each folder here is named for the environment that its tests run in. Helpers and fixtures are those of tests/python.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PYTHON_TESTS = Path(__file__).resolve().parent.parent / "python"
sys.path.insert(0, str(PYTHON_TESTS))  # for `from helpers import ...`

# By path: `import conftest` is this file.
spec = importlib.util.spec_from_file_location("python_tests_conftest", PYTHON_TESTS / "conftest.py")
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)

pytest_runtest_makereport = shared.pytest_runtest_makereport
session = shared.session
no_session = shared.no_session
ctrl_c = shared.ctrl_c
gate = shared.gate
