"""Runs the style checks and the tests, the next also if one failed, and ends with a summary of what passed.

usage: .venv/bin/python scripts/test.py                     what `make test` runs
       .venv/bin/python scripts/test.py faults              what `make test-faults` runs
       .venv/bin/python scripts/test.py learning [NAME...]  tests/learning/NAME, each in its environment; by default all
"""

import collections
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
JOBS = os.environ.get("JOBS") or str(os.cpu_count())
BESIDE = ["-n", JOBS, "--dist", "loadfile"]


class Step:
    """One command, and what its JUnit report counted if it writes one."""

    def __init__(self, name: str, command: list, report: str = "", hide: str = "$^"):
        self.name = name
        self.report = REPORTS / report if report else None
        print(f"\n=== {name} ===", flush=True)
        start = time.monotonic()
        self.ok = self.run([str(part) for part in command], re.compile(hide))
        self.seconds = time.monotonic() - start
        self.passed = self.failed = 0
        self.skipped: list = []  # the reasons
        if self.report:
            self.count()

    def run(self, command: list, hide: re.Pattern) -> bool:
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stdout:
                if not hide.match(line):
                    print(line, end="", flush=True)
        # As in Automake: what the step needs is not on this machine, and it has said so.
        self.absent = process.returncode == 77
        return process.returncode == 0

    def count(self) -> None:
        cases = []
        if self.report.exists():
            cases = list(ElementTree.parse(self.report).getroot().iter("testcase"))
        for case in cases:
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                self.failed += 1
            elif "skipped" in kinds:
                self.skipped.append(case.find("skipped").get("message") or "no reason given")
            else:
                self.passed += 1
        # No test at all is a broken build, not a success. What is skipped is said, with the reason.
        self.ok = self.ok and self.failed == 0 and len(cases) > 0

    def line(self) -> str:
        verdict = "absent" if self.absent else "ok" if self.ok else "FAILED"
        counts = ""
        if self.report:
            counts = f"{self.passed} passed"
            counts += f", {self.failed} failed" if self.failed else ""
            counts += f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"  {self.name:<15} {verdict:<7} {self.seconds:6.1f} s  {counts}"


def ordinary_steps() -> list:
    ctest = ["ctest", "--test-dir", "build/release", "--output-on-failure", "--parallel", JOBS]
    passing = r"\s*(Start\s+\d+:|\d+/\d+ Test .* Passed )|Internal ctest|Test project"
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q"]
    beside = [*pytest, *BESIDE, "-m", "not alone and not faults", f"--junitxml={REPORTS / 'python.xml'}"]
    alone = [*pytest, "-m", "alone and not faults", f"--junitxml={REPORTS / 'alone.xml'}"]
    return [
        Step("style", ["scripts/lint"]),
        Step("C++ tests", [*ctest, "--output-junit", REPORTS / "cpp.xml"], "cpp.xml", hide=passing),
        Step("Python tests", beside, "python.xml"),
        Step("measuring", alone, "alone.xml"),
    ]


def fault_steps() -> list:
    report = f"--junitxml={REPORTS / 'faults.xml'}"
    command = [sys.executable, "-m", "pytest", "-q", *BESIDE, "-m", "faults", report]
    return [Step("long faults", command, "faults.xml")]


def learning_steps(names: list) -> list:
    folder = ROOT / "tests" / "learning"
    present = sorted({path.parent.name for path in folder.glob("*/test_*.py")})
    unknown = sorted(set(names) - set(present))
    if unknown:
        sys.exit(
            f"weft: there are no tests in tests/learning/ for {', '.join(unknown)}; there are {', '.join(present)}"
        )
    steps = []
    for name in names or present:
        environment = Step(f"make {name}", ["scripts/learning-env", name])
        steps.append(environment)
        if environment.absent:
            environment.ok = True
        elif environment.ok:
            report = f"learning-{name}.xml"
            # Training takes longer than the 120 s that other tests are given.
            pytest = [ROOT / "build" / "learning" / name / "bin" / "python", "-m", "pytest", "-q", "--timeout=600"]
            steps.append(Step(name, [*pytest, folder / name, f"--junitxml={REPORTS / report}"], report))
    return steps


def main() -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    if kind == "learning":
        steps = learning_steps(sys.argv[2:])
    elif kind == "faults":
        steps = fault_steps()
    elif not kind:
        steps = ordinary_steps()
    else:
        sys.exit(f"weft: there are no tests called {kind!r}; there are faults and learning")
    passed, failed = sum(step.passed for step in steps), sum(step.failed for step in steps)
    ok = all(step.ok for step in steps)
    print("\n=== summary ===")
    for step in steps:
        print(step.line())
    for reason, count in collections.Counter(reason for step in steps for reason in step.skipped).items():
        print(f"  skipped {count}: {reason}")
    if ok:
        print(f"{passed} passed")
    else:
        bad = ", ".join(step.name for step in steps if not step.ok)
        print(f"FAILED: {bad}; {failed} failed, {passed} passed")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
