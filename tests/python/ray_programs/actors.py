import builtins
import os
import time

import ray
import ray.exceptions

KINDS = """
    ValueError TypeError KeyError AttributeError TimeoutError RayTaskError RayActorError ActorDiedError
    TaskCancelledError GetTimeoutError RayError
""".split()


def show(label, call):
    try:
        print(label, "->", call())
    except Exception as error:
        kinds = [
            name for name in KINDS if isinstance(error, getattr(builtins, name, None) or getattr(ray.exceptions, name))
        ]
        print(label, "raises", *kinds)


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.value = start

    def add(self, by=1):
        self.value += by
        return self.value

    @ray.method(num_returns=2)
    def both(self):
        return self.value, -self.value

    def fail(self):
        raise KeyError("in a method")

    def crash(self):
        os._exit(1)

    def leave(self):
        ray.actor.exit_actor()

    def sleep(self, seconds):
        time.sleep(seconds)

    def me(self):
        return ray.get_runtime_context().current_actor

    def pid(self):
        return os.getpid()


@ray.remote
class Broken:
    def __init__(self):
        raise ValueError("in the constructor")

    def method(self):
        return 1


@ray.remote
class Async:
    def __init__(self):
        import asyncio

        self.event = asyncio.Event()

    async def wait(self):
        await self.event.wait()
        return "waited"

    async def set(self):
        self.event.set()
        return "set"


@ray.remote
def use(counter, by):
    return ray.get(counter.add.remote(by))


@ray.remote
def sleep(seconds):
    time.sleep(seconds)


def dead(counter):
    """Calls until the death is known."""
    for _ in range(200):
        try:
            ray.get(counter.add.remote())
        except ray.exceptions.RayActorError:
            break
        time.sleep(0.05)
    return ray.get(counter.add.remote())


ray.init(num_cpus=4, log_to_driver=False)
counter = Counter.remote(10)
show("calls in order", lambda: ray.get([counter.add.remote() for _ in range(5)]))
show("keyword", lambda: ray.get(counter.add.remote(by=5)))
show("a reference as argument", lambda: ray.get(counter.add.remote(ray.put(5))))
show("two returns", lambda: ray.get(counter.both.remote()))
show("a method that raises", lambda: ray.get(counter.fail.remote()))
show("and goes on", lambda: ray.get(counter.add.remote(0)))
show("handle in a task", lambda: ray.get([use.remote(counter, 0) for _ in range(3)]))
show("handle in a list", lambda: ray.get(use.remote([counter][0], 1)))
show("unknown method", lambda: counter.nothing)
show("method called directly", lambda: counter.add())
show("class called directly", lambda: Counter())
show("too many arguments", lambda: Counter.remote(1, 2))
show("too many for a method", lambda: counter.add.remote(1, 2))
show("constructor that raises", lambda: ray.get(Broken.remote().method.remote()))
show("timeout", lambda: ray.get(counter.sleep.remote(1), timeout=0.1))
show("asyncio", lambda: (lambda a: ray.get([a.wait.remote(), a.set.remote()]))(Async.remote()))
show("own process", lambda: ray.get(counter.pid.remote()) not in (os.getpid(), ray.get(Counter.remote().pid.remote())))

named = Counter.options(name="named").remote(1)
show("by name", lambda: ray.get(ray.get_actor("named").add.remote()))
show("name taken", lambda: Counter.options(name="named").remote())
show("get_if_exists", lambda: ray.get(Counter.options(name="named", get_if_exists=True).remote(50).add.remote()))
show("no such name", lambda: ray.get_actor("nobody"))
ray.kill(named)
show("killed", lambda: dead(named))

crashing = Counter.remote()
show("crash", lambda: ray.get(crashing.crash.remote()))
show("after the crash", lambda: dead(crashing))
restarted = Counter.options(max_restarts=1, max_task_retries=3).remote(100)
show("before a restart", lambda: ray.get(restarted.add.remote()))
ray.kill(restarted, no_restart=False)
show("after a restart", lambda: ray.get(restarted.add.remote()))
leaving = Counter.remote()
show("exit_actor", lambda: ray.get(leaving.leave.remote()))
show("kill of a number", lambda: ray.kill(5))

running = sleep.remote(60)
queued = [sleep.options(num_cpus=4).remote(60)]
time.sleep(1)
ray.cancel(queued[0])
show("cancelled in the queue", lambda: ray.get(queued[0], timeout=20))
ray.cancel(running)
show("cancelled while it ran", lambda: ray.get(running, timeout=20))
show("unknown option", lambda: Counter.options(max_restart=1))
show("resources", lambda: ray.cluster_resources()["CPU"])
ray.shutdown()
