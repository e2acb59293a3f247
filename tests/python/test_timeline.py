"""timeline() and timeline_page(): what ran, where and when, as a trace and as a page in a real browser."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import weft
from browser import Browser, find_browser
from helpers import hold, wait_until

PIXELS = "document.querySelector('canvas').toDataURL()"
PICTURES = pathlib.Path(__file__).resolve().parents[2] / "build" / "pictures"


@weft.remote
def produce(n):
    time.sleep(0.002)
    return n


@weft.remote
def combine(a, b):
    time.sleep(0.002)
    return a + b


@weft.remote(max_retries=0)
def fail():
    raise ValueError("on purpose")


def runs(events, name):
    return [event for event in events if event["ph"] == "X" and event["cat"] == "task" and event["name"] == name]


@pytest.fixture
def fresh(no_session):
    weft.init(num_cpus=2)
    return weft


def test_every_run_is_there_with_its_worker_and_time(fresh):
    before = time.monotonic_ns() / 1000
    assert weft.get([produce.remote(i) for i in range(20)]) == list(range(20))
    after = time.monotonic_ns() / 1000
    events = weft.timeline()
    found = runs(events, "produce")
    assert len(found) == 20
    for event in found:
        assert before - 5 <= event["ts"] and event["ts"] + event["dur"] <= after + 5
        assert event["dur"] >= 1900, "the task slept for 2 ms"
        assert event["args"]["outcome"] == "FINISHED"
    titles = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    for event in found:
        assert titles[event["pid"]].startswith("worker")
    assert titles[os.getpid()].startswith("driver")
    # On one worker one task runs at a time.
    for pid in {event["pid"] for event in found}:
        own = sorted((event["ts"], event["ts"] + event["dur"]) for event in found if event["pid"] == pid)
        assert all(first[1] <= second[0] + 1 for first, second in zip(own, own[1:]))


def test_task_ids_are_those_of_the_references(fresh):
    ref = produce.remote(1)
    weft.get(ref)
    assert [event["args"]["task"] for event in runs(weft.timeline(), "produce")] == [ref.hex()]


def test_arrows_lead_from_submission_to_run_and_from_producer_to_consumer(fresh):
    a, b = produce.remote(1), produce.remote(2)
    assert weft.get(combine.remote(a, b)) == 3
    events = weft.timeline()
    flows: dict = {}
    for event in events:
        if event["ph"] in "sf":
            flows.setdefault((event["cat"], event["id"]), {})[event["ph"]] = event
    assert all(set(ends) == {"s", "f"} for ends in flows.values())
    depends = [ends for (kind, _), ends in flows.items() if kind == "depends"]
    consumer = runs(events, "combine")[0]
    assert len(depends) == 2
    for ends in depends:
        assert (ends["f"]["pid"], ends["f"]["ts"]) == (consumer["pid"], consumer["ts"])
        producer = [
            run
            for run in runs(events, "produce")
            if run["pid"] == ends["s"]["pid"] and run["ts"] <= ends["s"]["ts"] <= run["ts"] + run["dur"]
        ]
        assert len(producer) == 1
    submitted = [ends for (kind, _), ends in flows.items() if kind == "submitted"]
    assert len(submitted) == 3
    for ends in submitted:
        assert ends["s"]["pid"] == os.getpid()
        assert ends["s"]["ts"] <= ends["f"]["ts"]


def test_arrows_from_a_return_that_is_not_the_first(fresh):
    @weft.remote(num_returns=2)
    def pair():
        return 1, 2

    _, second = pair.remote()
    assert weft.get(combine.remote(second, 1)) == 3
    assert sum(event["ph"] == "s" and event["cat"] == "depends" for event in weft.timeline()) == 1


def test_a_running_task_and_a_failed_one(fresh, gate):
    @weft.remote
    def waits(path):
        hold(path)

    ref = waits.remote(gate.path)
    with pytest.raises(ValueError):
        weft.get(fail.remote())
    wait_until(lambda: [e["args"]["outcome"] for e in runs(weft.timeline(), "waits")] == ["RUNNING"])
    assert [event["args"]["outcome"] for event in runs(weft.timeline(), "fail")] == ["FAILED"]
    gate.open()
    weft.get(ref)
    assert [event["args"]["outcome"] for event in runs(weft.timeline(), "waits")] == ["FINISHED"]


def test_what_a_killed_worker_did_is_kept(fresh):
    @weft.remote(max_retries=0)
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    pids = set(weft.get([pid_of.remote() for _ in range(4)]))
    with pytest.raises(weft.WorkerCrashedError):
        weft.get(die.remote())
    events = weft.timeline()
    assert [event["args"]["outcome"] for event in runs(events, "die")] == ["DIED"]
    assert {event["pid"] for event in runs(events, "pid_of")} == pids


@weft.remote
def pid_of():
    return os.getpid()


def test_the_file_is_json(fresh, tmp_path):
    weft.get(produce.remote(1))
    path = tmp_path / "trace.json"
    assert weft.timeline(path) is None
    assert len(runs(json.loads(path.read_text()), "produce")) == 1


def test_events_can_be_switched_off():
    program = """
import weft
weft.init(num_cpus=1)
f = weft.remote(lambda: 1)
assert weft.get([f.remote() for _ in range(10)]) == [1] * 10
print(weft.timeline())
print(weft.state.list_tasks(), weft.state.list_nodes()[0]["resources_total"])
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "WEFT_EVENTS": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["[]", "[] {'CPU': 1.0}"]


def test_without_a_session_it_says_so(no_session):
    with pytest.raises(weft.WeftError, match="init"):
        weft.timeline()


def test_a_task_can_ask_too(fresh):
    @weft.remote
    def inside():
        return len(weft.timeline()) > 0 and weft.state.list_nodes()[0]["resources_total"]

    assert weft.get(inside.remote()) == {"CPU": 2.0}


# ---- the page -------------------------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")


def test_the_page_needs_nothing_else_and_survives_evil_names(fresh, tmp_path):
    evil = weft.remote(lambda: 1).options(name="</script><script>alert(1)</script><!--")
    weft.get(evil.remote())
    page = weft.timeline_page()
    assert page.count("<script") == 2 and page.count("</script>") == 2
    assert "http://" not in page and "https://" not in page and "src=" not in page
    path = tmp_path / "page.html"
    assert weft.timeline_page(path) == str(path)
    assert path.read_text().startswith("<!doctype html>")


@needs_browser
@pytest.mark.timeout(180)
def test_the_page_in_a_browser(fresh, tmp_path):
    pairs = [combine.remote(produce.remote(i), produce.remote(-i)) for i in range(20)]
    assert weft.get(pairs) == [0] * 20
    with pytest.raises(ValueError):
        weft.get(fail.remote())
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = tmp_path / "page.html"
    weft.timeline_page(path)
    with Browser(tmp_path / "profile") as browser:
        browser.open(path)
        browser.settle()
        browser.picture(PICTURES / "timeline.png")
        everything = browser.run(PIXELS)
        whole = browser.run("weftTimeline.span")
        assert browser.run("weftTimeline.drawn") > 0
        assert browser.run("weftTimeline.drawnFlows") == 0

        browser.click("#flows")
        assert browser.run("weftTimeline.arrows") is True
        assert browser.run("weftTimeline.drawnFlows") > 40
        browser.picture(PICTURES / "timeline-arrows.png")
        arrows = browser.run(PIXELS)
        assert arrows != everything

        for _ in range(3):
            browser.click("#in")
        assert browser.run("weftTimeline.span") == pytest.approx(whole / 1.6**3)
        browser.picture(PICTURES / "timeline-zoomed.png")
        assert browser.run(PIXELS) != arrows
        browser.click("#out")
        assert browser.run("weftTimeline.span") == pytest.approx(whole / 1.6**2)

        # The wheel zooms at the pointer, dragging pans.
        span = browser.run("weftTimeline.span")
        browser.mouse("mouseWheel", 600, 100, deltaX=0, deltaY=-200)
        browser.settle()
        assert browser.run("weftTimeline.span") < span
        begin = browser.run("weftTimeline.begin")
        browser.mouse("mousePressed", 700, 300, button="left", clickCount=1)
        browser.mouse("mouseMoved", 600, 300, button="left")
        browser.mouse("mouseReleased", 600, 300, button="left", clickCount=1)
        browser.settle()
        assert browser.run("weftTimeline.begin") > begin

        browser.click("#flows")
        assert browser.run("weftTimeline.drawnFlows") == 0
        browser.click("#fit")
        assert browser.run("weftTimeline.span") == pytest.approx(whole)
        browser.mouse("mouseMoved", 5, 5)
        browser.settle()
        assert browser.run(PIXELS) == everything, "back where it began"

        # What is under the pointer explains itself.
        box = browser.run(
            "(() => { const b = document.querySelector('canvas').getBoundingClientRect(); return [b.x, b.y]; })()"
        )
        data = json.loads(path.read_text().partition('id="data">')[2].partition("</script>")[0])
        row, start, took, name, _, task = data["slices"][-1]
        x = browser.run(f"170 + ({start} + {took} / 2 - weftTimeline.begin) / weftTimeline.span * (innerWidth - 170)")
        browser.mouse("mouseMoved", box[0] + x, box[1] + 26 + row * 26 + 13)
        browser.settle()
        assert task in browser.run("document.querySelector('#tip').textContent")
        browser.picture(PICTURES / "timeline-tip.png")
        assert browser.problems() == []


@needs_browser
@pytest.mark.timeout(180)
def test_the_page_with_100_000_runs(tmp_path):
    from weft import _timeline_page

    data = {
        "rows": [f"worker pid={i}" for i in range(40)],
        "names": ["f", "g", "h"],
        "slices": [[i % 40, i // 40 * 1000, 900, i % 3, "FINISHED", f"{i:032x}"] for i in range(100_000)],
        "flows": [[i % 2, i % 40, i // 40 * 1000, (i + 41) % 100_000] for i in range(100_000)],
        "overwritten": 5,
    }
    path = tmp_path / "page.html"
    path.write_text(_timeline_page.page(json.dumps(data)))
    with Browser(tmp_path / "profile") as browser:
        browser.open(path)
        browser.settle()
        assert 0 < browser.run("weftTimeline.drawn") <= 40 * 1200, "no more than there are pixels"
        browser.click("#flows")
        assert browser.run("weftTimeline.drawnFlows") > 1000
        began = time.monotonic()
        for _ in range(20):
            browser.click("#in")
        assert (time.monotonic() - began) / 20 < 1.0, "zooming stays fluent, with room for a slow machine"
        assert browser.run("weftTimeline.drawn") > 0
        PICTURES.mkdir(parents=True, exist_ok=True)
        browser.picture(PICTURES / "timeline-many.png")
        assert browser.problems() == []
