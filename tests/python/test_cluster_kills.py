"""Workers, nodes and the head are killed at random times: no task is lost, and none runs twice that must not.

The program is on a node that lives. Tasks leave a mark each time that they begin; those without retries may leave one
at most. WEFT_KILLS says how many kills the long run has.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from test_cluster import gone, until
from test_cluster_head import Headed, finish, say

LONG = int(os.environ.get("WEFT_KILLS", "60"))

# A node that dies while there is no head is known to be dead a lease later, if the next head lives that long.
HEAD_SECONDS = 12

PROGRAM = """
import collections
marks = os.path.expanduser("~/marks")
os.mkdir(marks)

def mark(kind, number):
    # One system call: a kill comes before the mark or after it.
    os.mkdir(f"{marks}/{kind}-{number}-{os.getpid()}-{time.monotonic_ns()}")

@weft.remote(max_retries=-1, num_cpus=1)
def again(number):
    mark("again", number)
    time.sleep(0.01)
    return number

@weft.remote(max_retries=0, num_cpus=1)
def once(number):
    mark("once", number)
    time.sleep(0.01)
    return number

@weft.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0, resources={"node": 0.1})
class Echo:
    def say(self, number):
        return number

echo = Echo.remote()
print("begun", flush=True)
lost = done = called = 0
number = 0
import select
while not select.select([sys.stdin], [], [], 0)[0]:
    numbers = range(number, number + 40)
    number += 40
    retried = [again.remote(i) for i in numbers]
    single = [once.remote(i) for i in numbers]
    calls = [echo.say.remote(i) for i in numbers]
    assert weft.get(retried, timeout=60) == list(numbers)
    assert weft.get(calls, timeout=60) == list(numbers)
    called += len(calls)
    for i, ref in zip(numbers, single):
        try:
            assert weft.get(ref, timeout=60) == i
            done += 1
        except weft.WeftError as error:
            assert not isinstance(error, weft.GetTimeoutError), error
            lost += 1
sys.stdin.readline()
begun = collections.Counter(name.rsplit("-", 2)[0] for name in os.listdir(marks))
for i in range(number):
    assert begun[f"again-{i}"] >= 1, i
    assert begun[f"once-{i}"] <= 1, i  # 0: it was lost before it began
print(number, done, lost, called, flush=True)
"""


@pytest.fixture
def nodes(tmp_path):
    made = Headed(tmp_path)
    yield made
    made.end()


@pytest.mark.timeout(120 + 10 * max(12, LONG))
@pytest.mark.parametrize("kills", [12, pytest.param(LONG, marks=pytest.mark.faults, id="many")])
def test_kills_at_random_times(nodes, kills):
    seed = int.from_bytes(os.urandom(4), "little")
    chance = random.Random(seed)
    print("seed", seed)  # seen if it fails
    head = nodes.start_head()
    home = nodes.start("--num-cpus=1", "--name=home")
    others = [nodes.start("--num-cpus=1", f"--name=other-{i}", "--resource=node=1") for i in range(2)]
    program = nodes.program_on(home, PROGRAM)
    assert program.stdout.readline() == "begun\n"
    head_may_die = 0.0
    for number in range(kills):
        time.sleep(chance.uniform(0.05, 0.8))  # when it happens is the point
        assert program.poll() is None, program.communicate()[1]
        kind = chance.choice(["worker", "worker", "node", "head"])
        if kind == "head" and time.monotonic() < head_may_die:
            kind = "node"
        if kind == "worker":
            workers = [int(row[0]) for row in nodes.children() if "_zygote" in row[2]]
            if workers:
                try:
                    os.kill(chance.choice(workers), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        elif kind == "node":
            victim = others.pop(chance.randrange(len(others)))
            nodes.kill(victim)
            until(lambda victim=victim: gone(victim))
            nodes.pids.remove(victim)
            others.append(nodes.start("--num-cpus=1", f"--name=again-{number}", "--resource=node=1"))
        else:
            nodes.kill(head)
            until(lambda head=head: gone(head))
            nodes.pids.remove(head)
            head = nodes.start_head()
            head_may_die = time.monotonic() + HEAD_SECONDS
    say(program)
    (line,) = finish(program)
    number, done, lost, called = map(int, line.split())
    assert number == done + lost == called
    assert number >= 40
    print(f"{kills} kills, {number} tasks of each kind, {lost} without retries lost")
