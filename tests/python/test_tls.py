"""`weft start --tls-...`: nodes that speak TLS, and refusals of those that do not, or have another certificate."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import textwrap

import pytest
from helpers import wait_until

SECONDS = 30
WEFT = os.path.join(sysconfig.get_path("scripts"), "weft")


def openssl(folder, *arguments) -> None:
    try:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    except FileNotFoundError:
        pytest.skip("makes certificates with the program openssl, which is not there")


class Authority:
    """A CA and certificates of it."""

    def __init__(self, folder) -> None:
        self.folder = folder
        folder.mkdir()
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        openssl(folder, "req", "-x509", *curve, "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.pem")

    def issue(self, name: str) -> list:
        """The options of a node."""
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}")
        openssl(self.folder, "req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        openssl(self.folder, "x509", "-req", *signing, "-in", f"{name}.csr", "-out", f"{name}.pem")
        return [
            f"--tls-cert={self.folder}/{name}.pem",
            f"--tls-key={self.folder}/{name}.key",
            f"--tls-ca={self.folder}/ca.pem",
        ]


class Nodes:
    def __init__(self, home) -> None:
        self.environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        self.address = ""
        self.pids: list = []

    def start(self, *arguments, check=True) -> subprocess.CompletedProcess:
        where = [f"--address={self.address}"] if self.address else ["--head", "--port=0"]
        command = [WEFT, "start", *where, "--json", "--num-cpus=1", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode == 0:
            self.pids.append(int(re.search(r'"pid": (\d+)', done.stdout)[1]))
            self.address = re.search(r'"address": "([^"]*)"', done.stdout)[1]
        assert not check or done.returncode == 0, done.stderr
        return done

    def output_of(self, text: str) -> str:
        program = f"import weft\nweft.init(address={self.address!r})\n" + textwrap.dedent(text)
        done = subprocess.run(
            [sys.executable, "-c", program], env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert not done.stderr, done.stderr
        return done.stdout

    def end(self) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture
def nodes(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    made = Nodes(home)
    yield made
    made.end()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


def test_tasks_values_and_actors_cross_nodes_over_tls(nodes, authority):
    nodes.start("--name=one", *authority.issue("one"))
    nodes.start("--name=two", "--resource=lamp=2", *authority.issue("two"))
    nodes.start("--name=three", "--resource=bell=2", *authority.issue("three"))
    assert nodes.output_of(
        """
        @weft.remote
        class Counter:
            count = 0
            def add(self, by):
                self.count += by
                return self.count

        @weft.remote(num_cpus=0, resources={"bell": 1})
        def ring(x):
            return x + "!"

        @weft.remote(num_cpus=0, resources={"lamp": 1})
        def work(counter, text):
            for _ in range(100):
                last = counter.add.remote(1)
            return weft.get(ring.remote(text)), weft.get(last) >= 100

        counter = Counter.remote()
        text = "x" * 3000
        print(weft.get([work.remote(counter, text) for _ in range(4)]) == [(text + "!", True)] * 4)
        print(weft.get(counter.add.remote(0)))
        many = [ring.remote(str(i)) for i in range(2000)]
        print(weft.get(many) == [f"{i}!" for i in range(2000)])
        """
    ) == ("True\n400\nTrue\n")


def test_work_goes_on_after_a_node_with_tls_was_killed(nodes, authority, tmp_path):
    nodes.start("--name=one", *authority.issue("one"))
    nodes.start("--name=two", *authority.issue("two"))
    program = f"""
        import os, signal, time

        @weft.remote
        def slow(i):
            open({str(tmp_path)!r} + f"/{{i}}-{{os.getppid()}}", "w").close()
            if i == 1 and os.path.exists({str(tmp_path)!r} + "/0") is False:
                time.sleep(0.05)
            return i

        first = weft.get([slow.remote(i) for i in range(50)])
        os.kill({nodes.pids[1]}, signal.SIGKILL)
        print(first == weft.get([slow.remote(i) for i in range(50)]))
    """
    assert nodes.output_of(program) == "True\n"


def test_a_node_without_tls_is_refused_by_a_head_with_it(nodes, authority):
    nodes.start("--name=one", *authority.issue("one"))
    refused = nodes.start("--name=two", check=False)
    assert refused.returncode == 1
    assert "it wants TLS: give the --tls options" in refused.stderr
    nodes.start("--name=two", *authority.issue("two"))


def test_a_node_with_tls_is_refused_by_a_head_without_it(nodes, authority):
    nodes.start("--name=one")
    refused = nodes.start("--name=two", *authority.issue("two"), check=False)
    assert refused.returncode == 1
    assert "--tls options" in refused.stderr
    nodes.start("--name=two")


def test_a_certificate_of_another_authority_is_refused(nodes, authority, tmp_path):
    nodes.start("--name=one", *authority.issue("one"))
    stranger = Authority(tmp_path / "stranger").issue("two")
    refused = nodes.start("--name=two", *stranger, check=False)
    assert refused.returncode == 1
    assert "certificate" in refused.stderr
    # Nor if it believes in the right one, but has no certificate of it.
    refused = nodes.start("--name=two", *stranger[:2], f"--tls-ca={authority.folder}/ca.pem", check=False)
    assert refused.returncode == 1
    nodes.start("--name=two", *authority.issue("two"))


def test_the_token_is_needed_with_tls_too(nodes, authority, tmp_path):
    nodes.start("--name=one", *authority.issue("one"))
    (tmp_path / "other").mkdir(mode=0o700)
    token = tmp_path / "other" / "token"
    token.write_text("f" * 64 + "\n")
    token.chmod(0o600)
    refused = nodes.start("--name=two", f"--token-file={token}", *authority.issue("two"), check=False)
    assert refused.returncode == 1
    assert "token" in refused.stderr


def test_files_that_cannot_be_used(nodes, authority):
    one = authority.issue("one")
    some = nodes.start(*one[:2], check=False)
    assert some.returncode == 2
    assert "all three" in some.stderr
    missing = nodes.start(*one[:2], "--tls-ca=nowhere.pem", check=False)
    assert missing.returncode == 1
    assert "nowhere.pem" in missing.stderr
    swapped = nodes.start(one[0], one[1].replace(".key", ".pem"), one[2], check=False)
    assert swapped.returncode == 1
    assert "key file" in swapped.stderr


def test_relative_names_are_those_of_the_caller(nodes, authority):
    options = [option.replace(str(authority.folder) + "/", "") for option in authority.issue("one")]
    done = subprocess.run(
        [WEFT, "start", "--head", "--port=0", "--json", *options],
        env=nodes.environment,
        cwd=authority.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    pid = int(re.search(r'"pid": (\d+)', done.stdout)[1])
    os.kill(pid, signal.SIGTERM)
    wait_until(
        lambda: not os.path.exists(f"/proc/{pid}") or open(f"/proc/{pid}/stat").read().split()[2] == "Z", SECONDS
    )
