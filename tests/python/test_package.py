"""The installed package: what pip knows of it, and the program inside it."""

import importlib.metadata
import subprocess
import sysconfig
from pathlib import Path

import weft
from weft import _cli

ROOT = Path(__file__).resolve().parent.parent.parent
WEFT = Path(sysconfig.get_path("scripts")) / "weft"


def test_versions_agree():
    version = (ROOT / "VERSION").read_text().strip()
    assert weft.__version__ == version
    assert importlib.metadata.version("weft") == version


def test_the_installed_package_is_tested_not_the_sources():
    assert Path(sysconfig.get_path("purelib")) in Path(weft.__file__).parents


def test_command_helps():
    result = subprocess.run([WEFT, "--help"], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0
    assert "weft" in result.stdout
    assert result.stderr == ""


def test_command_refuses_what_it_does_not_know():
    result = subprocess.run([WEFT, "no-such-command"], capture_output=True, text=True, timeout=30)
    assert result.returncode != 0
    assert "no-such-command" in result.stderr


def test_command_says_when_its_program_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(_cli, "program", lambda: str(tmp_path / "weft"))
    assert _cli.main() == 1
    assert str(tmp_path / "weft") in capsys.readouterr().err
