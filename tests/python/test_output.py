"""What workers print appears at the driver: complete, in whole lines, with its origin."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import weft
from helpers import run_driver, wait_until
from weft._events import OutputPrinter

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^\((\S+) pid=(\d+)\) (.*)$")


def lines(text: str) -> list[str]:
    return [match.group(3) for match in map(LINE.match, text.splitlines()) if match]


def test_stdout_and_stderr():
    driver = run_driver(
        """
        import sys, weft
        weft.init(num_cpus=1)
        @weft.remote
        def talk():
            print("to stdout"); print("to stderr", file=sys.stderr); print("two\\nlines")
        weft.get(talk.remote())
        """
    )
    assert lines(driver.stdout) == ["to stdout", "two", "lines"]
    assert lines(driver.stderr) == ["to stderr"]


def test_output_arrives_while_the_task_runs(tmp_path):
    driver = run_driver(
        """
        import sys, time, os, weft
        weft.init(num_cpus=1)
        @weft.remote
        def talk(path):
            print("early")
            while not os.path.exists(path): time.sleep(0.005)
        class Watch:
            def __init__(self, out): self.out = out
            def write(self, text):
                if "early" in text: open(sys.argv[1], "w").close()
                self.out.write(text)
            def flush(self): self.out.flush()
        sys.stdout = Watch(sys.stdout)
        weft.get(talk.remote(sys.argv[1]), timeout=30)
        """,
        arguments=[str(tmp_path / "seen")],
    )
    assert lines(driver.stdout) == ["early"]


def test_nothing_lost_or_reordered():
    driver = run_driver(
        """
        import weft
        weft.init(num_cpus=1)
        @weft.remote
        def talk(n):
            for i in range(n): print(i)
        weft.get(talk.remote(20000))
        """
    )
    assert lines(driver.stdout) == [str(i) for i in range(20000)]


def test_lines_of_several_workers_stay_whole():
    driver = run_driver(
        """
        import weft
        weft.init(num_cpus=3)
        @weft.remote
        def talk(letter):
            for i in range(300): print(letter * 200)
        weft.get([talk.remote(letter) for letter in "abc"])
        """
    )
    printed = lines(driver.stdout)
    assert sorted(printed) == ["a" * 200] * 300 + ["b" * 200] * 300 + ["c" * 200] * 300


def test_last_words_before_a_crash_and_without_newline():
    driver = run_driver(
        """
        import os, sys, weft
        weft.init(num_cpus=1)
        @weft.remote(max_retries=0)
        def die():
            print("last words"); os._exit(3)
        try: weft.get(die.remote())
        except weft.WorkerCrashedError: pass
        weft.get(weft.remote(lambda: sys.stdout.write("no newline")).remote())
        """
    )
    assert "last words" in lines(driver.stdout)
    assert "no newline" in lines(driver.stdout)


def test_log_to_driver_off():
    driver = run_driver(
        """
        import weft
        weft.init(num_cpus=1, log_to_driver=False)
        weft.get(weft.remote(lambda: print("hidden")).remote())
        print("shown")
        """
    )
    assert "hidden" not in driver.stdout
    assert "shown" in driver.stdout


def test_output_of_child_processes_and_c_code():
    driver = run_driver(
        """
        import os, subprocess, weft
        weft.init(num_cpus=1)
        @weft.remote
        def talk():
            subprocess.run(["echo", "from a child"]); os.write(1, b"from below\\n")
        weft.get(talk.remote())
        """
    )
    assert sorted(lines(driver.stdout)) == ["from a child", "from below"]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_any_character_and_any_byte(encoding):
    driver = run_driver(
        """
        import os, weft
        weft.init(num_cpus=1)
        @weft.remote
        def talk():
            print("ü€😀 \\ud800"); os.write(1, b"\\xff\\xfe bytes\\n"); print("end")
        weft.get(talk.remote())
        """,
        env={"PYTHONIOENCODING": encoding, "LC_ALL": "C"},
    )
    assert "end" in lines(driver.stdout)
    assert any("bytes" in line for line in lines(driver.stdout))


def test_stdout_closed_in_the_driver():
    run_driver(
        """
        import sys, weft
        weft.init(num_cpus=1)
        sys.stdout = None
        assert weft.get(weft.remote(lambda: print("nowhere")).remote()) is None
        assert weft.get(weft.put(1)) == 1
        """
    )


def test_pytest_sees_it(session, capsys):
    weft.get(weft.remote(lambda: print("captured words")).remote())
    seen = []

    def arrived():
        seen.append(capsys.readouterr().out)
        return "captured words" in "".join(seen)

    wait_until(arrived)


# ---- the printer by itself ------------------------------------------------------------------------------------------


def printed_by(printer, *outputs) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        for pid, text in outputs:
            printer.print(pid, False, text)
    return stream.getvalue()


def test_every_line_has_its_prefix():
    printed = printed_by(OutputPrinter(), (1, "a\nb\n"), (2, "\n"), (2, ""))
    assert printed == "(worker pid=1) a\n(worker pid=1) b\n(worker pid=2) \n"


def test_a_short_rest_is_ended_and_a_long_line_goes_on():
    long = "x" * 65536
    printed = printed_by(OutputPrinter(), (1, "rest"), (1, long), (1, "y\nz\n"), (1, long), (2, "other\n"))
    assert printed.splitlines() == [
        "(worker pid=1) rest",
        f"(worker pid=1) {long}y",
        "(worker pid=1) z",
        f"(worker pid=1) {long}",
        "(worker pid=2) other",
    ]


def test_broken_streams_do_no_harm(monkeypatch):
    printer = OutputPrinter()
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None, object()):
        monkeypatch.setattr(sys, "stdout", stream)
        printer.print(1, False, "text\n")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    printer.print(1, False, "ü\n")
    assert narrow.buffer.getvalue() == b"(worker pid=1) \\xfc\n"


def test_a_million_lines_of_an_actor_do_not_hold_up_the_driver():
    """All of it arrives in bounded time, and calls are answered meanwhile."""
    driver = run_driver(
        """
        import sys, time, weft
        weft.init(num_cpus=2)
        @weft.remote
        class Talker:
            def talk(self, n):
                for i in range(n // 1000):
                    sys.stdout.write("".join(f"{j}\\n" for j in range(i * 1000, (i + 1) * 1000)))
            def ping(self): return "pong"
        talker, other = Talker.remote(), Talker.remote()
        weft.get(other.ping.remote())
        ref = talker.talk.remote(1_000_000)
        started = time.monotonic()
        assert weft.get(other.ping.remote(), timeout=20) == "pong"
        assert time.monotonic() - started < 20
        weft.get(ref, timeout=60)
        assert weft.get(talker.ping.remote(), timeout=20) == "pong"
        """,
        seconds=100,
    )
    printed = lines(driver.stdout)
    assert len(printed) == 1_000_000
    assert printed == [str(i) for i in range(1_000_000)]


def test_the_origin_is_named_also_if_other_functions_run_at_the_same_time():
    """Both streams, of tasks that follow each other in one worker faster than the daemon can look."""
    driver = run_driver(
        """
        import sys, weft
        weft.init(num_cpus=1)

        @weft.remote
        def first(i):
            print("out", i); print("err", i, file=sys.stderr)

        @weft.remote
        def second(i):
            print("err", i, file=sys.stderr); sys.stdout.write(f"out {i}\\n")

        @weft.remote
        def silent():
            pass

        weft.get([f.remote(i) for i in range(200) for f in (first, second)])
        for i in range(200, 300):
            weft.get(first.remote(i))
            weft.get(silent.remote())
            weft.get(second.remote(i))
        """
    )
    for stream, text in (("out", driver.stdout), ("err", driver.stderr)):
        printed = [re.fullmatch(rf"\((\S+) pid=\d+\) {stream} (\d+)", line).groups() for line in text.splitlines()]
        assert sorted(printed) == sorted((name, str(i)) for name in ("first", "second") for i in range(300))


def named(text: str) -> list:
    """Of each line the name that stands before it, and its own first word, which is the right one."""
    return [re.fullmatch(r"\((\S+) pid=\d+\) (\w+).*", line).groups() for line in text.splitlines()]


def test_what_a_task_prints_without_python_has_its_name():
    """By its children and by the system's calls, after and before what others print."""
    driver = run_driver(
        """
        import os, subprocess, sys, weft
        weft.init(num_cpus=1)

        @weft.remote
        def printer(i):
            print("printer", i)
            print("printer", i, file=sys.stderr)

        @weft.remote
        def child(i):
            subprocess.run("echo child; echo child >&2", shell=True)

        @weft.remote
        def raw(i):
            os.write(1, b"raw\\n")
            os.write(2, b"raw\\n")

        @weft.remote
        def silent(i):
            pass

        weft.get([f.remote(i) for i in range(50) for f in (printer, raw)])
        for i in range(20):
            for f in (child, printer, raw, silent, child, child, raw):
                weft.get(f.remote(i))
        weft.get([printer.remote(i) for i in range(100)] + [raw.remote(i) for i in range(100)])
        """
    )
    for text in (driver.stdout, driver.stderr):
        assert len(named(text)) == 420
        assert [pair for pair in named(text) if pair[0] != pair[1]] == []


def test_output_after_a_long_silence_has_no_wrong_name():
    driver = run_driver(
        """
        import os, weft
        weft.init(num_cpus=1)

        @weft.remote
        def early(quiet):
            os.write(1, b"" if quiet else b"early\\n")

        @weft.remote
        def late(quiet):
            os.write(1, b"" if quiet else b"late\\n")

        weft.get(early.remote(False))
        for i in range(200):
            weft.get([early.remote(True), late.remote(True)])
        weft.get([late.remote(False) for _ in range(10)])
        weft.get([early.remote(False) for _ in range(10)])
        """
    )
    assert len(named(driver.stdout)) == 21
    assert {pair for pair in named(driver.stdout) if pair[0] not in ("worker", pair[1])} == set()


def test_each_task_of_a_cpp_program_is_named():
    driver = run_driver(
        "", command=[str(ROOT / "build" / "release" / "tests" / "cpp" / "library" / "weft_test_prints")]
    )
    for text in (driver.stdout, driver.stderr):
        assert len(named(text)) == 240
        assert [pair for pair in named(text) if pair[0] != pair[1]] == []


def test_a_redirected_descriptor_gets_what_the_task_prints_and_no_more(tmp_path):
    """And what is printed straight to the descriptor is the text and nothing else."""
    driver = run_driver(
        """
        import os, sys, weft
        weft.init(num_cpus=1)

        @weft.remote
        def capture(path):
            kept = os.dup(1)
            with open(path, "w") as file:
                os.dup2(file.fileno(), 1)
                print("into the file")
                os.dup2(kept, 1)
            print("shown")
            os.write(1, b"raw\\n")

        weft.get(capture.remote(sys.argv[1]))
        """,
        arguments=[str(tmp_path / "file")],
    )
    assert (tmp_path / "file").read_text() == "into the file\n"
    assert re.sub(r"pid=\d+", "", driver.stdout) == "(capture ) shown\n(capture ) raw\n"


def test_the_origin_is_the_actor_or_the_function(tmp_path):
    driver = run_driver(
        """
        import sys, time, os, weft
        weft.init(num_cpus=1)

        @weft.remote
        class Counter:
            def say(self):
                print("from an actor")

        @weft.remote(num_cpus=0)
        def speak(path):
            print("from a task")
            while not os.path.exists(path): time.sleep(0.005)

        class Watch:
            def __init__(self, out): self.out = out
            def write(self, text):
                if "from a task" in text: open(sys.argv[1], "w").close()
                self.out.write(text)
            def flush(self): self.out.flush()
        sys.stdout = Watch(sys.stdout)
        weft.get(Counter.remote().say.remote())
        weft.get(speak.remote(sys.argv[1]), timeout=30)
        weft.get(speak.options(name="two\\nlines").remote(sys.argv[1]), timeout=30)
        """,
        arguments=[str(tmp_path / "seen")],
    )
    assert re.search(r"^\(Counter pid=\d+\) from an actor$", driver.stdout, re.M), driver.stdout
    assert re.search(r"^\(speak pid=\d+\) from a task$", driver.stdout, re.M), driver.stdout
    assert len(driver.stdout.splitlines()) == 3, driver.stdout


def test_tasks_of_cpp_are_named_and_shown_while_they_run(tmp_path):
    """Also what they print before a crash, and to stdout without flushing it."""
    build = Path(__file__).resolve().parents[2] / "build" / "release"
    if shutil.which("g++") is None or not (build / "lib/libweft.so").exists():
        pytest.skip("needs g++ and the folder that `make build` fills")
    (tmp_path / "program.cc").write_text(
        """
        #include <weft/weft.h>
        #include <cstdio>
        #include <cstdlib>
        #include <iostream>
        int first() { std::printf("out\\n"); std::fprintf(stderr, "err\\n"); return 0; }
        int second() { std::cout << "out\\n"; std::cerr << "err\\n"; return 0; }
        int crash() { std::printf("last out\\n"); std::fprintf(stderr, "last err\\n"); std::_Exit(3); }
        struct Actor { int call() { return first(); } };
        int main(int, char** arguments) {
          auto session = weft::init({.num_cpus = 1});
          const std::string which = arguments[1];
          if (which == "first") weft::get(weft::remote<first>());
          if (which == "second") weft::get(weft::remote<second>());
          if (which == "crash") weft::try_get(weft::remote<crash>.with({.max_retries = 0})());
          if (which == "Actor") weft::get(weft::actor<Actor>().call<&Actor::call>());
        }
        """
    )
    include = [f"-I{build.parents[1] / 'include'}", f"-I{build / 'include'}"]
    link = [f"-L{build / 'lib'}", "-lweft", f"-Wl,-rpath,{build / 'lib'}", "-Wl,--build-id"]
    command = ["g++", "-std=c++20", *include, tmp_path / "program.cc", "-o", tmp_path / "program", *link]
    subprocess.run(command, check=True, timeout=120)
    for which, before in (("first", ""), ("second", ""), ("crash", "last "), ("Actor", "")):
        driver = run_driver("", command=[str(tmp_path / "program"), which])
        for stream, text in (("out", driver.stdout), ("err", driver.stderr)):
            assert re.sub(r" pid=\d+", "", text) == f"({which}) {before}{stream}\n"
