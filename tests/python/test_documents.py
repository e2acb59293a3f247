"""The documents say what is true: links lead somewhere, tables agree with the code, the README's example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def named(paths):
    return pytest.mark.parametrize("document", paths, ids=lambda path: str(path.relative_to(ROOT)))


@named(DOCUMENTS)
def test_links_lead_somewhere(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)  # a lambda of C++ looks like a link
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@named(DOCUMENTS)
def test_named_source_files_exist(document):
    # `src/x/y.*` stands for y.h and y.cc; `src/x` for the folder.
    for name in re.findall(r"`((?:src|python|include|examples|scripts)/[\w/.*-]*)`", document.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), f"{document.name} speaks of {name}"


def test_message_table_agrees_with_the_code():
    header = (ROOT / "src/wire/messages.h").read_text()
    source = (ROOT / "src/wire/messages.cc").read_text()
    variant = re.search(r"using Message =\s*std::variant<\s*std::monostate,(.*?)>;", header, re.S)[1]
    fields = {
        name: re.findall(r"m\.(\w+)", body)
        for name, body in re.findall(r"void Fields\(V&(?: v)?, (\w+)&(?: m)?\) \{(.*?)\}", source, re.S)
    }
    code = [(str(number), name, fields[name]) for number, name in enumerate(re.findall(r"\w+", variant), 1)]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| \w+ daemon \| (.*?) \|", (ROOT / "docs/formats.md").read_text(), re.M)
    table = [
        (number, name, [] if text == "none" else [field.split()[0] for field in text.split(", ")])
        for number, name, text in rows
    ]
    assert table == code


def test_every_environment_variable_is_described():
    sources = [*ROOT.glob("src/**/*.cc"), *ROOT.glob("src/**/*.h"), *ROOT.glob("python/weft/**/*.py")]
    used = {name for source in sources for name in re.findall(r'"(WEFT_[A-Z0-9_]+)', source.read_text())}
    assert used >= {"WEFT_LOG_LEVEL", "WEFT_SIM_SEED", "WEFT_PRELOAD"}, "they are found at all"
    described = set(re.findall(r"WEFT_[A-Z0-9_]+", (ROOT / "docs/debugging.md").read_text()))
    assert not used - described


def test_the_example_of_the_readme_runs(tmp_path):
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    program = tmp_path / "example.py"
    program.write_text(snippet)
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    # Eight uniform numbers have the sum 4, in the tree and in the actor's statistics.
    assert [float(line) for line in result.stdout.split()] == pytest.approx([4, 4], abs=0.01)


def blocks(document):
    """The Python blocks of a document as one program, in which each line has the number that it has there."""
    lines = document.read_text().splitlines()
    program, inside = [], False
    for line in lines:
        fence = line.startswith("```")
        program.append(line if inside and not fence else "")
        inside = line == "```python" if fence and not inside else inside and not fence
    return "\n".join(program) + "\n"


@named(sorted((ROOT / "docs/user").glob("*.md")))
def test_snippets_run_and_print_what_they_say(document, tmp_path):
    source = blocks(document)
    program = tmp_path / "snippets.py"
    program.write_text(source)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    result = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=90, cwd=tmp_path, env=environment
    )
    said = re.findall(r"^ *print\(.*\)  # (.*)$", source, re.M)
    printed = [line for line in result.stdout.splitlines() if not re.match(r"\(.* pid=", line)]  # not by workers
    assert result.returncode == 0, result.stderr
    if len(said) == len(re.findall(r"^ *print\(", source, re.M)):
        assert printed == said
    else:  # some prints do not say what they print
        rest = iter(printed)
        assert all(line in rest for line in said), printed
