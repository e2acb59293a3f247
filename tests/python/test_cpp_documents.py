"""The C++ in the documents compiles, runs, and prints what it says.

A block is one of these, by what is in it:
- `int main(`: a program of its own.
- `// does not compile:` as its first line: it must not, and the compiler says each line of the next block.
- `// tasks.cc` as its first line: a library of tasks, with the next ```py block as the Python that uses it.
- else a part of one program of all these parts: definitions, and behind a line `// in main:` statements, which become a
  function that main calls in a session that the document's `start()` opens.
The comment behind a `printf` is the line that it prints.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "release"
DOCUMENTS = [ROOT / "README.md", ROOT / "docs/user/cpp.md", ROOT / "docs/user/cpp_coming_from.md"]
STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", f"-I{BUILD / 'include'}"]
COMPILE = ["g++", *STRICT]
UNUSED = ["-Wno-unused-variable", "-Wno-unused-but-set-variable"]  # snippets show more than they use
LINK = [f"-L{BUILD / 'lib'}", "-lweft", f"-Wl,-rpath,{BUILD / 'lib'}", "-Wl,--build-id"]

pytestmark = [
    pytest.mark.timeout(300),  # compilers run here
    pytest.mark.skipif(not (BUILD / "lib/libweft.so").exists(), reason="needs the folder that `make build` fills"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


class Block:
    def __init__(self, document: Path, language: str, line: int, lines: list[str]):
        self.language, self.line, self.lines = language, line, lines
        self.place = f'#line {line} "{document.name}"'
        self.text = "\n".join(lines) + "\n"
        self.first = lines[0] if lines else ""


def blocks(document: Path) -> list[Block]:
    found: list[Block] = []
    fence = None
    lines: list[str] = []
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif fence is None:
            fence, lines = (line[3:], number + 1), []
        else:
            found.append(Block(document, *fence, lines))
            fence, lines = None, []
    return found


def kind(block: Block) -> str:
    if block.language != "cpp":
        return "other"
    if block.first == "// does not compile:":
        return "refused"
    if block.first == "// tasks.cc":
        return "library"
    return "program" if "int main(" in block.text else "part"


CASES = [
    pytest.param(document, index, id=f"{document.stem}:{block.line}")
    for document in DOCUMENTS
    for index, block in enumerate(blocks(document))
    if kind(block) not in ("other", "part")
]


def run(command: list, folder: Path, code: int = 0) -> subprocess.CompletedProcess:
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=folder)
    assert (result.returncode == 0) == (code == 0), f"{' '.join(words)}\n{result.stdout}{result.stderr}"
    return result


def build(source: str, folder: Path, name: str, *options: str) -> Path:
    """With ccache if there is one: the documents change less often than the tests run."""
    launcher = ["ccache"] if shutil.which("ccache") else []
    (folder / f"{name}.cc").write_text(source)
    run([*launcher, *COMPILE, *options, "-c", f"{name}.cc", "-o", f"{name}.o"], folder)
    run(["g++", *options, f"{name}.o", "-o", name, *LINK], folder)
    return folder / name


def said(text: str) -> list[str]:
    return re.findall(r"^.*\bprintf\(.*;  // (.*)$", text, re.M)


def printed(output: str) -> list[str]:
    return [line for line in output.splitlines() if not re.match(r"\(.* pid=", line)]  # not by workers


@pytest.mark.parametrize("document, index", CASES)
def test_block(document, index, tmp_path):
    all_blocks = blocks(document)
    block = all_blocks[index]
    after = all_blocks[index + 1] if index + 1 < len(all_blocks) else None
    if kind(block) == "program":
        program = build(block.text, tmp_path, "program")
        output = printed(run([program], tmp_path).stdout)
        if said(block.text):
            assert output == said(block.text)
    elif kind(block) == "refused":
        (tmp_path / "refused.cc").write_text(block.text)
        output = run([*COMPILE, "-fsyntax-only", "refused.cc"], tmp_path, code=1).stderr
        assert output.count("error:") == 1, output
        for line in after.text.splitlines():
            assert line in output
    else:
        name, python = "libtasks.so", after
        build(block.text, tmp_path, name, "-fPIC", "-shared", "-Wl,-z,nodelete")
        (tmp_path / "use.py").write_text(python.text)
        output = printed(run([sys.executable, "use.py"], tmp_path).stdout)
        assert output == re.findall(r"^print\(.*\)  # (.*)$", python.text, re.M)


def program_of_parts(document: Path) -> tuple[str, list[str]]:
    """Its source, and what it prints."""
    parts = [block for block in blocks(document) if kind(block) == "part"]
    source, calls, expected = "", [], []
    for block in parts:
        cut = block.lines.index("// in main:") if "// in main:" in block.lines else len(block.lines)
        source += "\n".join([block.place, *block.lines[:cut], ""])
        statements = block.lines[cut + 1 :]
        if statements:
            name = f"part_at_line_{block.line}"
            place = f'#line {block.line + cut + 1} "{document.name}"'
            source += "\n".join([f"void {name}() {{", place, *statements, "}", ""])
            calls.append(f"  {name}();\n  std::fflush(stdout);\n")
            expected += said("\n".join(statements))
    source += '#line 1 "main"\nint main() {\n  auto session = start();\n' + "".join(calls) + "}\n"
    return source, expected


@pytest.mark.parametrize("document", DOCUMENTS[1:], ids=lambda path: path.stem)
def test_parts(document, tmp_path):
    source, expected = program_of_parts(document)
    program = build(source, tmp_path, "parts", *UNUSED)
    assert printed(run([program], tmp_path).stdout) == expected


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_clang(document, tmp_path):
    """Everything that compiles, compiles with Clang as well, and what must not does not."""
    sources = [block.text for block in blocks(document) if kind(block) in ("program", "library")]
    if any(kind(block) == "part" for block in blocks(document)):
        sources.append(program_of_parts(document)[0])
    launcher = ["ccache"] if shutil.which("ccache") else []
    for number, source in enumerate(sources):
        (tmp_path / f"{number}.cc").write_text(source)
        run([*launcher, "clang++", *STRICT, *UNUSED, "-c", f"{number}.cc", "-o", f"{number}.o"], tmp_path)
    for block in blocks(document):
        if kind(block) == "refused":
            (tmp_path / "refused.cc").write_text(block.text)
            run(["clang++", *STRICT, "-fsyntax-only", "refused.cc"], tmp_path, code=1)


def test_the_messages_of_the_table_are_those_of_the_headers():
    headers = "".join(path.read_text() for path in sorted((ROOT / "include/weft").rglob("*.h")))
    headers = re.sub(r'"\s*\n\s*"', "", headers)  # long texts are written in pieces
    rows = re.findall(
        r"^\| (.*) \| (.*) \|$", (ROOT / "docs/user/cpp.md").read_text().split("| the error says |")[1], re.M
    )
    assert len(rows) > 10
    for code, message in rows:
        if not message.startswith("the compiler's own"):
            assert message in headers, code


@pytest.mark.parametrize(
    "name, header", [("InitOptions", "session"), ("TaskOptions", "remote"), ("ActorOptions", "actor")]
)
def test_the_tables_of_options_are_whole_and_in_order(name, header):
    """The order matters: designated initialisers must come in that of the declaration."""
    declared = (ROOT / "include" / "weft" / f"{header}.h").read_text().split(f"struct {name} {{\n")[1].split("\n};")[0]
    fields = re.findall(r"^  [\w:<>, ]+ (\w+) = ", declared, re.MULTILINE)
    table = (ROOT / "docs/user/cpp.md").read_text().split(f"| `{name}` | |\n|---|---|\n")[1].split("\n\n")[0]
    named = [field for row in table.splitlines() for field in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert named == fields
