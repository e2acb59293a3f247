"""weft.util.tf_cluster with the real TensorFlow: parameter servers and workers, on one node and on three.

TensorFlow takes long to import, so one cluster serves the tests that do not break it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf2
import weft
from weft.testing import Cluster
from weft.util import TfClusterError, tf_cluster

tf = tf2.compat.v1

SEEDS = Path(os.environ.get("WEFT_SEEDS") or Path(__file__).resolve().parents[4] / "shared" / "seeds")
SECONDS = 240  # on a busy machine; nothing here waits that long if all is well
TRUTH = [1.0, 2.0, 3.0]


@pytest.fixture(scope="module", params=[1, 3], ids=["one node", "three nodes"])
def cluster(request):
    """2 ps and 2 workers."""
    weft.shutdown()
    if request.param == 1:
        weft.init(num_cpus=4)
        with tf_cluster(ps=2, workers=2) as made:
            yield made
        weft.shutdown()
        return
    with Cluster(head={"num_cpus": 2}) as nodes:
        nodes.add_node(num_cpus=2)
        nodes.add_node(num_cpus=2)
        weft.init(address=nodes.address)
        with tf_cluster(ps=2, workers=2) as made:
            yield made


def model(device):
    """A straight line through the origin in three dimensions, its variables on the ps."""
    with tf.device(device):
        step = tf.train.get_or_create_global_step()
        weights = tf.get_variable("weights", initializer=np.zeros(3, "float32"), use_resource=True)
        inputs = tf.placeholder(tf.float32, [None, 3])
        error = tf.linalg.matvec(inputs, weights) - tf.linalg.matvec(inputs, tf.constant(TRUTH))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(error**2), global_step=step)
    return step, weights, inputs, error, train


def train(task, steps, fresh):
    """Between-graph replication: each worker has a graph and a session of its own, on its own server."""
    with tf.Graph().as_default():
        setter = tf.train.replica_device_setter(worker_device=task.device, cluster=task.cluster_spec())
        step, weights, inputs, error, update = model(setter)
        random = np.random.default_rng(task.index)
        with tf.Session(task.target, config=task.config()) as session:
            if fresh:
                session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(update, {inputs: random.normal(size=(16, 3))})
            return session.run(weights), int(session.run(step)), weights.device, error.device


def train_for_ever(task, path):
    open(f"{path}.{task.index}", "w").close()
    while True:
        train(task, 100, fresh=False)


def wait_for_files(*paths):
    deadline = time.monotonic() + SECONDS
    while not all(map(os.path.exists, paths)):
        assert time.monotonic() < deadline, f"nobody made {paths}"
        time.sleep(0.02)


def initialise(cluster):
    weft.get(cluster.run(train, 0, True, index=0), timeout=SECONDS)


def seed_blocks() -> list:
    """The programs of the page on parameter servers, as they are printed."""
    found = sorted(SEEDS.glob("004_*.txt")) if SEEDS.is_dir() else []
    if not found:
        pytest.skip(f"the seeds are not there: {SEEDS}")
    placement, sessions = re.findall(r"^```python\n(.*?)^```$", found[0].read_text(), re.M | re.S)
    by_ps_tasks, by_cluster = placement.split("# or place worker\n")
    return [by_ps_tasks, by_cluster, sessions]


def filled_in(text, lacking, *values):
    """The program with what it lacks, as often as there are values. docs/seeds.md lists these places."""
    assert text.count(lacking) == len(values), f"{lacking!r} in {text}"
    for value in values:
        text = text.replace(lacking, value, 1)
    return text


def run_seed(source, **names) -> dict:
    exec(compile(source, "the seed", "exec"), names)
    return names


def test_the_placement_of_the_seed():
    program, _, _ = seed_blocks()
    program = filled_in(program, "tf.Variable(...)", *(f"tf.Variable(tf.zeros({s}))" for s in ([4, 3], 3, [3, 2], 2)))
    with tf.Graph().as_default() as graph:
        made = run_seed(program, tf=tf)
        variables = [made.pop(name) for name in ("w_0", "b_0", "w_1", "b_1")]
        assert [variable.device for variable in variables] == [f"/job:ps/task:{i}" for i in (0, 1, 2, 0)]
        computed = [value for value in made.values() if isinstance(value, tf.Tensor)]
        assert len(computed) == 3 and {tensor.device for tensor in computed} == {"/job:worker"}
        # "only Variable ops are placed on ps tasks"
        on_ps = {node.type for node in graph.get_operations() if "/job:ps" in node.device}
        assert on_ps <= {"VarHandleOp", "VarIsInitializedOp", "AssignVariableOp", "ReadVariableOp", "VariableV2"}


def test_the_worker_of_the_seed(cluster):
    """Each worker runs it on its own server. task_idx is text in it."""
    _, program, _ = seed_blocks()
    program = filled_in(program, "clustercluster=", "cluster=")
    model = "total = tf.get_variable('total', initializer=0.0); twice = 2 * total; update = total.assign_add(twice + 1)"
    program = filled_in(program, "# build your model here as if you only were using a single machine", model)
    steps = "total.initializer.run(); ended = [tf.get_default_session().run(update) for _ in range(3)]"
    program = filled_in(program, "# train your model here", steps)

    def run(task):
        with tf.Graph().as_default():
            made = run_seed(program, tf=tf, task_idx=str(task.index), cluster=task.cluster_spec(), server=task.server)
            return [float(value) for value in made["ended"]], made["total"].device, made["twice"].device

    for index in range(2):
        ended, variable, computation = weft.get(cluster.run(run, index=index), timeout=SECONDS)
        assert ended == [1, 4, 13]
        assert (variable, computation) == ("/job:ps/task:0", f"/job:worker/task:{index}")


def test_the_sessions_of_the_seed(cluster):
    _, _, program = seed_blocks()
    program = filled_in(program, "grpc://example.org:2222", cluster.target("worker", 1))
    here = "here = [device.name for device in sess.list_devices()]"
    there = "there = [device.name for device in tf.get_default_session().list_devices()]"
    program = filled_in(program, "# ...", here, there)
    with tf.Graph().as_default():
        made = run_seed(program, tf=tf)
    assert not any("/job:worker" in name for name in made["here"])
    for name in ("/job:ps/replica:0/task:1", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"):
        assert any(device.startswith(name) for device in made["there"])


def test_what_is_announced(cluster):
    assert {job: len(addresses) for job, addresses in cluster.spec.items()} == {"ps": 2, "worker": 2}
    assert len({address for addresses in cluster.spec.values() for address in addresses}) == 4
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in weft.nodes()}
    assert len({process.node_id for process in cluster.processes}) == len(nodes)
    for process in cluster.processes:
        assert process.address.rpartition(":")[0] == nodes[process.node_id]
    assert cluster.cluster_spec().as_dict() == cluster.spec

    def config(task):
        return os.environ["TF_CONFIG"], task.is_chief, task.device, task.target

    assert weft.get(cluster.run(config), timeout=SECONDS) == [
        (cluster.tf_config("worker", i), i == 0, f"/job:worker/task:{i}", cluster.target("worker", i)) for i in (0, 1)
    ]


def test_between_graph_replication(cluster):
    initialise(cluster)
    for weights, _, variable, computation in weft.get(cluster.run(train, 80, False), timeout=SECONDS):
        np.testing.assert_allclose(weights, TRUTH, atol=0.01)
        assert variable == "/job:ps/task:1"  # the global step was made first
        assert computation.startswith("/job:worker/task:")
    _, step, _, _ = weft.get(cluster.run(train, 0, False, index=1), timeout=SECONDS)
    assert step == 160  # of both, in one variable


def test_in_graph_replication_by_a_remote_session_of_the_driver(cluster):
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            weights = tf.get_variable("shared", initializer=np.zeros(3, "float32"), use_resource=True)
        inputs, gradients = [], []
        for worker in range(2):
            with tf.device(f"/job:worker/task:{worker}"):
                inputs.append(tf.placeholder(tf.float32, [None, 3]))
                error = tf.linalg.matvec(inputs[-1], weights - tf.constant(TRUTH))
                gradients += tf.gradients(tf.reduce_mean(error**2), [weights])
        update = weights.assign_sub(0.1 * tf.add_n(gradients) / 2)
        random = np.random.default_rng(0)
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(weights.initializer)
            used = tf.RunMetadata()
            for _ in range(80):
                session.run(
                    update,
                    {each: random.normal(size=(16, 3)) for each in inputs},
                    options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                    run_metadata=used,
                )
            np.testing.assert_allclose(session.run(weights), TRUTH, atol=0.01)
    devices = {entry.device.partition("/device:")[0].replace("/replica:0", "") for entry in used.step_stats.dev_stats}
    assert devices >= {"/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"}


def test_a_monitored_session_finds_the_variables_that_the_chief_made(cluster):
    def monitored(task):
        with tf.Graph().as_default():
            setter = tf.train.replica_device_setter(worker_device=task.device, cluster=task.cluster_spec())
            step, _, inputs, _, update = model(setter)
            with tf.train.MonitoredTrainingSession(
                task.target, is_chief=task.is_chief, config=task.config()
            ) as session:
                session.run(update, {inputs: np.ones((1, 3))})
                return int(session.run(step))

    assert weft.get(cluster.run(monitored, index=0), timeout=SECONDS) == 1
    assert weft.get(cluster.run(monitored, index=1), timeout=SECONDS) == 2


def test_a_worker_is_killed_and_replaced(cluster, tmp_path):
    initialise(cluster)
    path = str(tmp_path / "began")
    running = cluster.run(train_for_ever, path, index=1)
    wait_for_files(f"{path}.1")
    old = cluster.processes[-1]
    os.kill(old.pid, signal.SIGKILL)
    with pytest.raises(weft.ActorDiedError, match="SIGKILL"):
        weft.get(running, timeout=SECONDS)
    assert cluster.dead() == [old]
    cluster.check()  # the others do not need it
    weights, before, _, _ = weft.get(cluster.run(train, 40, False, index=0), timeout=SECONDS)
    np.testing.assert_allclose(weights, TRUTH, atol=0.1)
    cluster.replace("worker", 1)
    assert cluster.dead() == []
    new = cluster.processes[-1]
    assert (new.address, new.node_id) == (old.address, old.node_id) and new.pid != old.pid
    _, after, _, _ = weft.get(cluster.run(train, 10, False, index=1), timeout=SECONDS)
    assert after == before + 10  # it goes on with what the ps have


def test_a_ps_that_dies_ends_every_call_and_can_be_replaced(cluster, tmp_path):
    initialise(cluster)
    path = str(tmp_path / "began")
    running = cluster.run(train_for_ever, path)
    wait_for_files(f"{path}.0", f"{path}.1")
    old = cluster.processes[1]
    os.kill(old.pid, signal.SIGKILL)
    killed = time.monotonic()
    words = rf"ps 1 of the TensorFlow cluster, pid {old.pid} at {old.address}, has ended \(.*SIGKILL.*variables .* lost"
    for ref in running:
        with pytest.raises(TfClusterError, match=words):
            weft.get(ref, timeout=SECONDS)
    assert time.monotonic() - killed < 5  # a second or two where nothing else runs
    with pytest.raises(TfClusterError, match=words):
        cluster.check()
    # A session that begins now would wait for the ps for ever.
    with pytest.raises(TfClusterError, match=words):
        weft.get(cluster.run(train, 1, False, index=0), timeout=SECONDS)
    cluster.replace("ps", 1)
    for worker in range(2):
        cluster.replace("worker", worker)
    cluster.check()
    initialise(cluster)
    weights, step, _, _ = weft.get(cluster.run(train, 80, False, index=0), timeout=SECONDS)
    np.testing.assert_allclose(weights, TRUTH, atol=0.01)
    assert step == 80


def test_a_session_that_waits_for_a_dead_ps_is_given_up(cluster, tmp_path):
    """The ps dies before the session begins; TensorFlow then waits without end."""
    began = str(tmp_path / "began")
    go = str(tmp_path / "go")

    def late(task):
        open(began, "w").close()
        wait_for_files(go)
        return train(task, 1, fresh=True)

    running = cluster.run(late, index=0)
    wait_for_files(began)
    os.kill(cluster.processes[0].pid, signal.SIGKILL)
    open(go, "w").close()
    with pytest.raises(TfClusterError, match="ps 0 of the TensorFlow cluster"):
        weft.get(running, timeout=SECONDS)
    cluster.replace("ps", 0)
    cluster.replace("worker", 0)
    initialise(cluster)


def expect_end_of_session(cluster, old, target, tell=None):
    """A session of the driver raises within seconds when a ps is dead; the cluster says which one."""
    began = time.monotonic()
    with pytest.raises((tf.errors.DeadlineExceededError, tf.errors.UnavailableError)), tf.Graph().as_default():
        with tf.device("/job:ps/task:1"):
            weights = tf.get_variable("shared", initializer=np.zeros(3, "float32"), use_resource=True)
        step = weights.assign_add([1.0, 1.0, 1.0])
        with tf.Session(target, config=cluster.config(timeout=2)) as session:
            session.run(weights.initializer)
            while True:
                session.run(step)
                if tell is not None:
                    began = tell()
                    tell = None
    assert time.monotonic() - began < 15  # 2 s for the run, 2 s to close the session
    with pytest.raises(TfClusterError, match=f"ps 1 of the TensorFlow cluster, pid {old.pid}"):
        cluster.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread that closes it
def test_a_session_of_the_driver_does_not_wait_for_a_dead_ps(cluster):
    old = cluster.processes[1]

    def kill():
        os.kill(old.pid, signal.SIGKILL)
        return time.monotonic()

    target = cluster.target("worker", 0)
    expect_end_of_session(cluster, old, target, kill)  # dies during the session
    expect_end_of_session(cluster, old, target)  # was dead before
    cluster.replace("ps", 1)
    for worker in range(2):
        cluster.replace("worker", worker)
    initialise(cluster)


# ---- today's tf.distribute ------------------------------------------------------------------------------------------


@pytest.fixture
def session():
    weft.shutdown()
    weft.init(num_cpus=4)
    yield
    weft.shutdown()


def mirrored(task, steps):
    strategy = tf2.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf2.Variable(np.zeros(3, "float32"))

    @tf2.function
    def step(inputs):
        def replica(inputs):
            with tf2.GradientTape() as tape:
                error = tf2.linalg.matvec(inputs, weights - tf2.constant(TRUTH))
                loss = tf2.reduce_mean(error**2)
            gradient = tape.gradient(loss, weights)
            weights.assign_sub(0.1 * tf2.distribute.get_replica_context().all_reduce("mean", gradient))

        strategy.run(replica, args=(inputs,))

    random = np.random.default_rng(task.index)  # each worker has data of its own
    for _ in range(steps):
        step(tf2.constant(random.normal(size=(16, 3)), tf2.float32))
    return strategy.num_replicas_in_sync, weights.numpy()


def test_multi_worker_mirrored_strategy(session):
    with tf_cluster(workers=2, servers=False) as cluster:
        (replicas, first), (_, second) = weft.get(cluster.run(mirrored, 80), timeout=SECONDS)
        assert replicas == 2
        np.testing.assert_allclose(first, TRUTH, atol=0.01)
        assert (first == second).all()  # they took the same steps
        with pytest.raises(TfClusterError, match="worker 0 has no server to run a session on"):
            cluster.target("worker", 0)


def coordinate(resolver):
    strategy = tf2.distribute.ParameterServerStrategy(resolver)
    coordinator = tf2.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights, steps = tf2.Variable(np.zeros(3, "float32")), tf2.Variable(0)

    @tf2.function
    def step(seed):
        def replica():
            inputs = tf2.random.stateless_normal([16, 3], [seed, 0])
            with tf2.GradientTape() as tape:
                loss = tf2.reduce_mean(tf2.linalg.matvec(inputs, weights - tf2.constant(TRUTH)) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            steps.assign_add(1)

        strategy.run(replica)

    for seed in range(100):
        coordinator.schedule(step, args=(tf2.constant(seed),))
    coordinator.join()
    return weights.numpy(), int(steps), [weights.device, steps.device]


def expect_trained(result):
    weights, steps, devices = result
    np.testing.assert_allclose(weights, TRUTH, atol=0.01)
    assert steps == 100
    assert all(device.startswith("/job:ps/") for device in devices)


def test_parameter_server_strategy_with_the_driver_as_coordinator(session):
    with tf_cluster(ps=2, workers=2) as cluster:
        expect_trained(coordinate(cluster.resolver()))


def test_parameter_server_strategy_with_a_chief(session):
    def chief(task):
        return coordinate(tf2.distribute.cluster_resolver.TFConfigClusterResolver())

    with tf_cluster(ps=1, workers=2, chief=True) as cluster:
        expect_trained(weft.get(cluster.run(chief, job="chief", index=0), timeout=SECONDS))
        with pytest.raises(TfClusterError, match="chief 0 has no server"):
            cluster.target("chief")
        with pytest.raises(TfClusterError, match="has a chief of its own"):
            cluster.resolver()


def test_the_snippets_of_the_guide_print_what_they_say(tmp_path):
    guide = (Path(__file__).resolve().parents[3] / "docs" / "user" / "learning.md").read_text()
    section = guide.partition("## Parameter servers\n")[2].partition("\n## ")[0]
    source = "\n".join(re.findall(r"^```python tensorflow\n(.*?)^```", section, re.M | re.S))
    program = tmp_path / "snippets.py"
    program.write_text(source)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if not re.match(r"\(.* pid=", line)]
    assert printed == re.findall(r"^ *print\(.*\)  # (.*)$", source, re.M)
