"""Checks that each folder of src/ includes only folders it may use.

CMake links the folders as libraries in the same order, but a header needs no linking: this is what notices.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A folder may use itself and what stands behind it here. The table is also the picture in ARCHITECTURE.md.
MAY_USE = {
    "base": "",
    "os": "base",
    "log": "base os",
    "wire": "base",
    "events": "base os wire",
    "transport": "base os wire",
    "object_store": "base os wire",
    "control_store": "base os wire",
    "scheduling": "base wire",
    "actors": "base wire",
    "cluster": "base wire",
    "head": "base wire control_store scheduling cluster",
    "transfer": "base wire",
    "node": "base os log wire events transport object_store control_store scheduling actors cluster head transfer",
    "runtime": "base os wire events transport object_store",
    "simulator": "base wire transport control_store scheduling actors cluster head transfer runtime node",
    "api_cpp": "base os wire transport object_store runtime",
    "api_python": "base os wire events transport object_store runtime api_cpp",
    "cli": "base os log wire scheduling node",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/')


def main() -> int:
    problems = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        folder = path.relative_to(ROOT / "src").parts[0]
        name = path.relative_to(ROOT)
        if folder not in MAY_USE:
            problems.append(f"{name}: src/{folder} is not in the table of scripts/check_layers.py")
            continue
        allowed = {folder, *MAY_USE[folder].split()}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match and match[1] in MAY_USE and match[1] not in allowed:
                problems.append(f"{name}:{number}: src/{folder} may not use src/{match[1]}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
