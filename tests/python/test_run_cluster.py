"""`weft run --address=...`: unchanged programs on a cluster."""

from __future__ import annotations

import pytest
from test_run import weft_run, write
from weft.testing import Cluster

PROGRAM = """
    import os, warnings
    import ray

    ray.init(num_cpus=4, resources={"lamp": 1}, object_store_memory=10**8)

    @ray.remote(resources={"lamp": 1})
    def far():
        return os.getppid()

    @ray.remote
    def near(x):
        return x + 1

    print(ray.cluster_resources())
    print(ray.get([near.remote(i) for i in range(20)]) == list(range(1, 21)), ray.get(far.remote()) > 0)
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(head={"num_cpus": 2}) as made:
        made.add_node(num_cpus=2, resources={"lamp": 1})
        yield made


def test_a_program_that_asks_for_resources_of_its_own(cluster, tmp_path):
    script = write(tmp_path / "program.py", PROGRAM)
    done = weft_run(f"--address={cluster.address}", script)
    assert done.stdout == "{'CPU': 4.0, 'lamp': 1.0}\nTrue True\n"
    assert done.stderr.count("has no effect under weft run --address") == 1
    assert "num_cpus=..., resources=..., object_store_memory=..." in done.stderr
    assert f"{script}:4: UserWarning" in done.stderr  # where the program says it


def test_a_program_that_asks_for_nothing_is_not_warned(cluster, tmp_path):
    script = write(tmp_path / "program.py", "import ray; ray.init(); print(ray.cluster_resources()['CPU'])")
    done = weft_run("--address", cluster.address, script)
    assert (done.stdout, done.stderr) == ("4.0\n", "")


def test_a_program_of_2018(cluster, tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import ray
        ray.init(num_cpus=4, num_gpus=0, include_webui=False, ignore_reinit_error=True)

        @ray.remote(num_return_vals=2)
        def two():
            return 1, 2

        print(ray.get(list(two.remote())))
        """,
    )
    done = weft_run(f"--address={cluster.address}", "--ray-api=0.6", script)
    assert done.stdout == "[1, 2]\n"
    assert done.stderr.count("no effect") == 1


def test_addresses(cluster, tmp_path):
    """Those that ray.init returns and client_table lists: a program of 2018 passes them on to others."""
    script = write(
        tmp_path / "program.py",
        """
        import subprocess, sys
        import ray
        info = ray.init()
        print(info["redis_address"], info["node_ip_address"])
        for client in ray.global_state.client_table():
            print(f"{client['NodeManagerAddress']}:{client['NodeManagerPort']}")
        sys.stdout.flush()
        code = "import sys, ray; ray.init(redis_address=sys.argv[1]); print(ray.cluster_resources()['CPU'])"
        subprocess.run([sys.executable, "-c", code, info["redis_address"]], check=True)
        """,
    )
    done = weft_run(f"--address={cluster.address}", "--ray-api=0.6", script)
    first, *clients, cpus = done.stdout.splitlines()
    assert first == f"{cluster.address} {cluster.address.rpartition(':')[0]}"
    assert len(clients) == 2 and len(set(clients)) == 2 and cluster.address in clients
    assert cpus == "4.0"


def test_addresses_of_today(cluster, tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import ray
        with ray.init() as context:
            print(context["address"], context["gcs_address"], context["node_id"] == ray.nodes()[0]["NodeID"])
        with ray.init("local") as context:
            print(context["address"], context["gcs_address"], context["redis_address"], context["node_ip_address"])
        """,
    )
    done = weft_run(f"--address={cluster.address}", script)
    assert done.stdout == f"{cluster.address} {cluster.address} True\nlocal None None 127.0.0.1\n"


def test_weft_init_of_the_program_too(cluster, tmp_path):
    script = write(
        tmp_path / "program.py", "import weft; weft.init(num_cpus=7); print(weft.cluster_resources()['CPU'])"
    )
    done = weft_run(f"--address={cluster.address}", script)
    assert done.stdout == "4.0\n"
    assert "init(num_cpus=...) has no effect" in done.stderr


def test_an_address_in_the_program_is_the_programs_own(cluster, tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import sys, weft
        try:
            weft.init(address=sys.argv[1], num_cpus=2)
        except ValueError as error:
            print(error)
        weft.init(address="local", num_cpus=3)
        print(weft.cluster_resources())
        """,
    )
    done = weft_run(f"--address={cluster.address}", script, cluster.address)
    assert "has what its nodes have" in done.stdout
    assert "{'CPU': 3.0}" in done.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--address=nonsense"], 'must be "auto", "local" or "host:port"'),
        (["--address"], "--address needs HOST:PORT or auto"),
        (["--address=local", "x.py"], "--address is for clusters"),
        (["--adress=a:1"], "there is no option '--adress'"),
    ],
)
def test_wrong_usage(arguments, words):
    done = weft_run(*arguments, code=2)
    assert words in done.stderr


def test_a_cluster_that_is_not_there(tmp_path):
    script = write(tmp_path / "program.py", "import ray; ray.init()")
    done = weft_run("--address=127.0.0.1:1", script, code=1)
    assert "no node of the cluster 127.0.0.1:1 runs on this machine" in done.stderr
