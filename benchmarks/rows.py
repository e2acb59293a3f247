"""The rows of the comparison: what is measured, in which systems, and the goal.

A row takes one metric from one workload. Rows that share workload and parameters are measured together, once.
Advantage is always direction-adjusted: 2 means twice as good as what it is compared with, whether the unit is a time
(lower is better) or a rate (higher is better). "At most 4x the ping-pong" is thus an advantage of at least 1/4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

PEERS = ["ray", "multiprocessing", "joblib", "dask"]
SYSTEMS = ["weft", "weft_cpp", *PEERS, "ray_cpp", "bare"]


@dataclass
class Goal:
    """`advantage` over another system's value, in this row or in `row`; or an absolute bound in the row's unit."""

    text: str
    against: str = ""
    advantage: float = 0.0
    row: str = ""
    bound: Optional[float] = None


@dataclass
class Row:
    key: str
    title: str
    workload: str
    metric: str
    unit: str  # s, /s, B/s, B, MB, count, %
    systems: list[str]
    parameters: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    higher_is_better: bool = False
    subject: str = "weft"  # Whose goal it is.
    bare: str = ""  # What the bare column of this row is.
    note: str = ""
    fresh: bool = False  # Each repetition in a new process, while no other system is up.
    most_repetitions: int = 0  # 0: as many as asked for. For rows that are slow or start systems.
    parameters_for: dict[str, dict[str, Any]] = field(default_factory=dict)  # Where a system is measured differently.
    timeout_seconds: float = 180.0

    def parameters_of(self, system: str) -> dict[str, Any]:
        return {**self.parameters, **self.parameters_for.get(system, {})}


@dataclass
class Scale:
    """How much is measured. `quick` is for seeing that everything runs; its numbers are not worth quoting."""

    min_seconds: float = 0.3
    tasks: int = 1000
    large_bytes: int = 800_000_000
    rotation_bytes: int = 100_000_000
    get_bytes: int = 1_000_000_000
    cpp_array_bytes: int = 100_000_000
    waits: int = 10_000
    queue_sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    slow_queue_size: int = 10_000
    clients: int = 2
    leaves: int = 1000
    idle_seconds: float = 2.0
    actors: int = 100
    crowd: int = 1000

    @staticmethod
    def quick() -> Scale:
        return Scale(
            min_seconds=0.05,
            large_bytes=50_000_000,
            rotation_bytes=10_000_000,
            get_bytes=100_000_000,
            cpp_array_bytes=10_000_000,
            waits=2_000,
            queue_sizes=(1_000, 10_000),
            slow_queue_size=1_000,
            leaves=200,
            idle_seconds=1.0,
            actors=10,
            crowd=50,
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:g} MB"


def all_rows(scale: Scale) -> list[Row]:
    both = ["weft", "ray"]
    everyone = ["weft", *PEERS]
    timed = {"min_seconds": scale.min_seconds}
    count = {"count": scale.tasks, **timed}
    rows = []

    def add(*arguments, **keywords):
        rows.append(Row(*arguments, **keywords))

    # One row per call, as in a table.
    # fmt: off
    # ---- starting, stopping, doing nothing ----
    cold = {"fresh": True, "most_repetitions": 5}
    add("first_task", "new process to first result", "cold_start", "first_result_seconds", "s", [*everyone, "bare"],
        goals=[Goal("≥ 50× Ray", "ray", 50)], bare="`python -c pass`", **cold)
    add("shutdown", "shutdown", "cold_start", "shutdown_seconds", "s", everyone,
        goals=[Goal("≥ 10× Ray", "ray", 10)], **cold)
    add("all_gone", "last result to nothing left running", "cold_start", "gone_seconds", "s", [*everyone, "bare"],
        bare="`python -c pass`", **cold)
    idle = {"parameters": {"seconds": scale.idle_seconds}, "fresh": True, "most_repetitions": 3}
    add("idle_memory", "idle memory, sum of PSS", "idle", "pss_bytes", "B", everyone,
        goals=[Goal("≤ 1/6 of Ray", "ray", 6)], **idle)
    add("idle_processes", "processes, driver included", "idle", "processes", "count", everyone, **idle)
    add("idle_threads", "threads per worker", "idle", "threads_per_worker", "count", everyone,
        goals=[Goal("≤ 3", bound=3)], **idle)
    add("idle_cpu", "idle CPU of all processes", "idle", "cpu_percent", "%", everyone,
        goals=[Goal("0 % (below 0.05)", bound=0.05)], **idle)
    add("installed_size", "installed size", "installed_size", "megabytes", "MB", ["weft", "ray", "joblib", "dask"],
        goals=[Goal("≤ 15 MB", bound=15)], most_repetitions=1, fresh=True,
        note="The package itself without its dependencies; weft's has no dashboard yet.")
    add("wheel_size", "wheel", "installed_size", "wheel_megabytes", "MB", ["weft"], goals=[Goal("≤ 5 MB", bound=5)],
        most_repetitions=1, fresh=True, note="Needs a wheel in dist/. Ray's wheel is not downloaded for this.")

    # ---- tasks ----
    rate = {"higher_is_better": True}
    add("tasks_async", f"{scale.tasks} tasks, then get", "tasks_async", "tasks_per_second", "/s", [*everyone, "bare"],
        count, [Goal("≥ 300× Ray", "ray", 300), Goal("≥ 20× apply_async", "multiprocessing", 20),
                Goal("≥ 5× joblib", "joblib", 5), Goal("≥ 12 % of the ring", "bare", 0.12)],
        bare="ring to a Python function, both sides spinning", **rate,
        note="The ring is several times slower when both sides must share a core, as on a busy machine.")
    add("task_sync", "task, submit and get", "task_sync", "seconds", "s", [*everyone, "bare"], timed,
        [Goal("≥ 50× Ray", "ray", 50), Goal("≤ 4× the ping-pong", "bare", 0.25)],
        bare="futex ping-pong, unpinned, non-spinning",
        note="The ping-pong has two speeds: both processes on one core, or a wake-up across cores.")
    add("nested", f"task that runs {scale.tasks} tasks", "nested", "seconds", "s", both, count,
        [Goal("≥ 100× Ray", "ray", 100)])
    add("chain", f"chain of {scale.tasks} tasks", "chain", "seconds", "s", [*both, "dask"], count,
        [Goal("≥ 100× Ray", "ray", 100)])
    add("tree_reduce", f"tree reduce of {scale.leaves} leaves", "tree_reduce", "seconds", "s", [*both, "dask"],
        {"leaves": scale.leaves, **timed}, [Goal("≥ 100× Ray", "ray", 100)])
    ready = {"count": scale.tasks, "compute_seconds": 1.0}
    add("ready_get", f"get of {scale.tasks} results after computing 1 s", "ready_while_computing", "get_seconds", "s",
        both, ready, [Goal("≤ 2× getting them again", "weft", 0.5, row="ready_again")])
    add("ready_again", "getting the same results again", "ready_while_computing", "get_again_seconds", "s", both, ready)
    add("ready_unfinished", "… tasks unfinished after that second", "ready_while_computing",
        "unfinished_when_computed", "count", both, ready, [Goal("0", bound=0)])
    together = {"kind": "tasks", "size": scale.tasks, "clients": scale.clients, **timed}
    add("clients_tasks", f"tasks async from {scale.clients} clients, total", "clients_together", "per_second", "/s",
        both, together, [Goal("≥ 300× Ray", "ray", 300), Goal("≥ one client", "weft", 1, row="tasks_async")], **rate)

    # ---- a long queue ----
    for size in scale.queue_sizes:
        slow = min(size, scale.slow_queue_size)
        biggest = size == scale.queue_sizes[-1]
        systems = both if size == scale.slow_queue_size or biggest else ["weft"]
        common = {
            "parameters": {"count": size},
            "parameters_for": {"ray": {"count": slow}},
            "fresh": True,
            "most_repetitions": 3,
            "note": f"Ray is measured with {slow:,} tasks." if slow != size else "",
            "timeout_seconds": 600.0,
        }
        goals = [Goal("≥ 50× Ray", "ray", 50)] if biggest else []
        if biggest:
            goals += [Goal(f"linear: ≤ 1.5× of {other:,}", "weft", 1 / 1.5, row=f"queued_{other}")
                      for other in scale.queue_sizes[:-1]]
        add(f"queued_{size}", f"{size:,} queued tasks, time each", "queued", "seconds_per_task", "s", systems,
            goals=goals, **common)
        if biggest:
            add("queued_bytes", f"{size:,} queued tasks, driver's memory each", "queued", "driver_bytes_per_task", "B",
                systems, goals=[Goal("≤ 500 B", bound=500)], **common)
            add("queued_bytes_all", f"{size:,} queued tasks, all processes' memory each", "queued",
                "all_bytes_per_task", "B", systems, goals=[Goal("≤ 500 B", bound=500)], **common)

    # ---- objects ----
    small = [Goal("≥ 200× Ray", "ray", 200)]
    add("put_small", "put of an int", "put_small", "seconds", "s", both, timed, small)
    add("get_small", "get of an int", "get_small", "seconds", "s", both, timed, small)
    add("get_small_once", "get of an int, each reference once", "get_small_once", "seconds", "s", both, count, small)
    add("clients_puts", f"puts of an int from {scale.clients} clients, total", "clients_together", "per_second", "/s",
        both, {**together, "kind": "puts"}, [Goal("≥ 200× Ray", "ray", 200)], **rate)
    large, rotated = _size(scale.large_bytes), _size(scale.rotation_bytes)
    for size in sorted({scale.rotation_bytes, scale.large_bytes}):
        add(f"put_large_{size}", f"put of {_size(size)}, repeated", "put_large", "bytes_per_second", "B/s",
            [*both, "bare"], {"size": size, "alive": 1, **timed}, [Goal("≥ 70 % of memcpy", "bare", 0.7)],
            bare="memcpy", **rate)
    add("put_rotation", f"put of {rotated}, eight kept alive", "put_large", "bytes_per_second", "B/s", [*both, "bare"],
        {"size": scale.rotation_bytes, "alive": 8, **timed}, [Goal("≥ 70 % of memcpy", "bare", 0.7)],
        bare="memcpy to eight places", **rate)
    add("put_first", f"first put of {large} in a process", "put_large_first", "bytes_per_second", "B/s",
        [*both, "bare"], {"size": scale.large_bytes}, [Goal("≥ 80 % of the fresh copy", "bare", 0.8)],
        bare="copy into a new memfd", fresh=True, most_repetitions=5, **rate)
    add("clients_large_puts", f"puts of {rotated} from {scale.clients} clients, total", "clients_together",
        "per_second", "B/s", both, {**together, "kind": "large puts", "size": scale.rotation_bytes},
        [Goal("≥ one client", "weft", 1, row=f"put_large_{scale.rotation_bytes}")], **rate)
    big = _size(scale.get_bytes)
    add("get_1kb", "get of a 1 kB array", "get_large", "seconds", "s", both, {"size": 1000, **timed})
    add("get_large", f"get of a {big} array", "get_large", "seconds", "s", both, {"size": scale.get_bytes, **timed},
        [Goal("≤ 2× the 1 kB one", "weft", 0.5, row="get_1kb")])
    add("get_1kb_of_worker", "first get of a worker's 1 kB array", "get_large_of_worker", "seconds", "s", both,
        {"size": 1000})
    add("get_large_of_worker", f"first get of a worker's {big} array", "get_large_of_worker", "seconds", "s", both,
        {"size": scale.get_bytes})

    # ---- references ----
    for metric, words in (("with_tasks_seconds", "submit and wait"), ("ready_seconds", "wait, all ready:")):
        add(f"wait_1000_{metric}", f"{words} loop over {scale.tasks}", "wait_loop", metric, "s", [*both, "bare"],
            {"count": scale.tasks}, [Goal("≥ 100× Ray", "ray", 100)], bare="list copies", most_repetitions=5)
    note = "Not measured for Ray, to keep the run short."
    add("wait_many", f"wait, all ready: loop over {scale.waits:,}", "wait_loop", "ready_seconds", "s",
        ["weft", "bare"], {"count": scale.waits}, [Goal("≤ 3× list copies", "bare", 1 / 3)], bare="list copies",
        note=note, most_repetitions=5)
    add("wait_many_tasks", f"submit and wait loop over {scale.waits:,}", "wait_loop", "with_tasks_seconds", "s",
        ["weft", "bare"], {"count": scale.waits}, bare="list copies", note=note, most_repetitions=5)
    add("as_completed", f"as_completed over {scale.waits:,}", "as_completed", "seconds", "s", ["weft"],
        {"count": scale.waits}, most_repetitions=5)
    add("references", "get of an object with 10,000 references", "references_in_object", "seconds", "s", both,
        {"count": 10_000, **timed}, [Goal("≥ 100× Ray", "ray", 100)], most_repetitions=5)

    # ---- actors ----
    ping_pong = Goal("≤ 4× the ping-pong", "bare", 0.25, row="task_sync")
    add("actor_sync", "actor call, submit and get", "actor_sync", "seconds", "s", both, {"kind": "plain", **timed},
        [Goal("≥ 50× Ray", "ray", 50), ping_pong])
    for key, title, kind, actors in (
        ("actor_async", "calls of an actor, then get", "plain", 1),
        ("actor_1_n", f"calls of {scale.clients} actors in turn, then get", "plain", scale.clients),
        ("actor_threaded", "calls of an actor with two threads, then get", "threaded", 1),
    ):
        add(key, f"{scale.tasks} {title}", "actor_async", "calls_per_second", "/s", both,
            {"kind": kind, "actors": actors, **count}, [Goal("≥ 100× Ray", "ray", 100)], **rate)
    add("actor_n_n", f"actor calls, {scale.clients} callers × {scale.clients} actors, total", "actor_callers",
        "calls_per_second", "/s", both,
        {"kind": "plain", "callers": scale.clients, "actors": scale.clients, **count},
        [Goal("≥ 100× Ray", "ray", 100)], **rate)
    add("actor_asyncio_sync", "asyncio actor call, submit and get", "actor_sync", "seconds", "s", both,
        {"kind": "asyncio", **timed}, [Goal("≥ 40× Ray", "ray", 40)])
    add("actor_asyncio", f"{scale.tasks} calls of an asyncio actor, then get", "actor_async", "calls_per_second", "/s",
        [*both, "bare"], {"kind": "asyncio", "actors": 1, **count}, [Goal("≥ 40× Ray", "ray", 40)],
        bare="asyncio: create_task and gather, one process", **rate)
    many = {"fresh": True, "most_repetitions": 3, "timeout_seconds": 600.0}
    made = {"parameters": {"count": scale.actors}, **many}
    add("actors_created", f"{scale.actors} actors created, all answering", "actors_created", "seconds", "s", both,
        goals=[Goal("≥ 20× Ray", "ray", 20)], **made)
    add("actors_gone", f"{scale.actors} actors gone after the last handle", "actors_created", "gone_seconds", "s", both,
        **made)
    note = "Not measured for Ray, to keep the run short."
    crowd = {"parameters": {"count": scale.crowd}, "note": note, **many, "most_repetitions": 1}
    add("actors_crowd", f"{scale.crowd:,} actors created, all answering", "actors_created", "seconds", "s", ["weft"],
        **crowd)
    add("actors_crowd_memory", f"{scale.crowd:,} actors, memory each, PSS", "actors_created", "bytes_per_actor", "B",
        ["weft"], goals=[Goal("≤ 12 MB", bound=12e6)], **crowd)
    add("actors_crowd_gone", f"{scale.crowd:,} actors gone after the last handle", "actors_created", "gone_seconds",
        "s", ["weft"], **crowd)

    # ---- learning ----
    for size in (1_000_000, scale.rotation_bytes):
        served = {"size": size, "workers": 2, **timed}
        add(f"parameter_server_{size}", f"parameter server round, {_size(size)}, 2 workers", "parameter_server",
            "seconds", "s", both, served, [Goal("≥ 5× Ray", "ray", 5)],
            note="One program for both; most of it is NumPy's at 100 MB.")
        add(f"parameter_server_util_{size}", f"… the same by weft.util.ParameterServer, {_size(size)}",
            "parameter_server_util", "seconds", "s", ["weft"], served,
            [Goal("≥ 5× Ray", "ray", 5, row=f"parameter_server_{size}")])

    # ---- the same from C++ ----
    def cpp(kind, size):
        return {"parameters": {"kind": kind, "size": size, **timed}, "subject": "weft_cpp"}

    both_cpp = ["weft_cpp", "ray_cpp"]
    faster = Goal("≥ 100× Ray C++", "ray_cpp", 100)
    add("cpp_tasks_async", f"C++: {scale.tasks} tasks, then get", "cpp", "value", "/s", [*both_cpp, "bare"],
        goals=[Goal("≥ 1000× Ray C++", "ray_cpp", 1000), Goal("≥ 1 M/s", bound=1e6)],
        bare="ring to a native function", **cpp("tasks", scale.tasks), **rate)
    add("cpp_task_sync", "C++: task, submit and get", "cpp", "value", "s", both_cpp,
        goals=[faster, Goal("≤ 4× the ping-pong", "bare", 0.25, row="task_sync")], **cpp("task_sync", 1))
    add("cpp_actor_async", f"C++: {scale.tasks} calls of an actor, then get", "cpp", "value", "/s", both_cpp,
        goals=[faster, Goal("≥ 2 M/s", bound=2e6)], **cpp("calls", scale.tasks), **rate)
    add("cpp_actor_many", f"C++: {100 * scale.tasks:,} calls of an actor, then get", "cpp", "value", "/s",
        ["weft_cpp"], note="Not measured for Ray, to keep the run short.", **cpp("calls", 100 * scale.tasks), **rate)
    add("cpp_actor_sync", "C++: actor call, submit and get", "cpp", "value", "s", both_cpp, goals=[faster],
        **cpp("call_sync", 1))
    add("cpp_get_1kb", "C++: get of a 1 kB array", "cpp", "value", "s", ["weft_cpp"], **cpp("get_array", 1000))
    add("cpp_get_large", f"C++: get of a {big} array", "cpp", "value", "s", ["weft_cpp"],
        goals=[Goal("≤ 2× the 1 kB one", "weft_cpp", 0.5, row="cpp_get_1kb")], **cpp("get_array", scale.get_bytes))
    sent = _size(scale.cpp_array_bytes)
    add("python_cpp_1kb", "1 kB array from Python to a C++ task and back", "cpp_array", "seconds", "s", ["weft"],
        {"size": 1000, **timed})
    array = {"size": scale.cpp_array_bytes, **timed}
    add("python_cpp_array", f"{sent} array from Python to a C++ task and back", "cpp_array", "seconds", "s", ["weft"],
        array)
    add("python_cpp_copied", "… bytes of it copied, by where it lies", "cpp_array", "copied_bytes", "B", ["weft"],
        array, [Goal("0", bound=0)])
    add("python_cpp_store", "… growth of the driver's store", "cpp_array", "store_bytes", "B", ["weft"],
        array, [Goal("one array", bound=1.05 * scale.cpp_array_bytes)])

    # ---- the global scheduler alone, without network or processes ----
    for nodes in (10, 100, 1_000, 10_000):
        decided = {"parameters": {"nodes": nodes, **timed}, "most_repetitions": 5}
        add(f"decisions_{nodes}", f"placements decided, {nodes:,} nodes, per second of CPU", "scheduler",
            "decisions_per_second", "/s", ["weft"],
            goals=[Goal("≥ 100,000/s", bound=1e5)] if nodes == 1_000 else [], **decided, **rate)
        if nodes == 1_000:
            add(f"decisions_{nodes}_memory", f"… memory of the scheduler per node, {nodes:,} nodes", "scheduler",
                "bytes_per_node", "B", ["weft"], goals=[Goal("< 10 kB", bound=1e4)], **decided)
    # fmt: on
    return rows


# Rows of the goals that this suite has no workload for, so that a reader does not take silence for success.
NOT_MEASURED = [
    "placement groups",
    "several nodes: remote tasks, transfers, broadcast",
    "allreduce",
    "several drivers in one session (several clients are tasks that submit tasks)",
]
