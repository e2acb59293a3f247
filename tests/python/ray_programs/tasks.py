import builtins
import time

import ray
import ray.exceptions

KINDS = """
    ValueError TypeError KeyError TimeoutError ZeroDivisionError AttributeError NotImplementedError
    RayTaskError GetTimeoutError WorkerCrashedError RayError
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
def add(a, b=10, *rest, c=100):
    return a + b + c + sum(rest)


@ray.remote(num_returns=2)
def two():
    return 1, 2


@ray.remote(num_returns=2)
def three_for_two():
    return 1, 2, 3


@ray.remote
def fail(kind, *args):
    raise kind(*args)


@ray.remote
def get_failure():
    return ray.get(fail.remote(KeyError, "inner"))


@ray.remote(max_retries=0)
def crash():
    import os

    os._exit(1)


@ray.remote
def sleep(seconds, value=None):
    time.sleep(seconds)
    return value


@ray.remote
def fib(n):
    return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))


@ray.remote
def kind_of(value):
    return type(value).__name__


@ray.remote
def many(n):
    return [add.remote(i, 0, c=0) for i in range(n)]


class Custom(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


@ray.remote
def fail_custom():
    raise Custom(7, "seven")


def custom_code():
    try:
        ray.get(fail_custom.remote())
    except Custom as error:
        return error.code, isinstance(error, ray.exceptions.RayTaskError)


ray.init(num_cpus=4, log_to_driver=False)

show("defaults", lambda: ray.get(add.remote(1)))
show("keywords", lambda: ray.get(add.remote(1, c=2, b=3)))
show("rest", lambda: ray.get(add.remote(1, 2, 3, 4)))
show("a list of references", lambda: ray.get([add.remote(i) for i in range(4)]))
show("an empty list", lambda: ray.get([]))
show("a reference as argument", lambda: ray.get(add.remote(add.remote(1), ray.put(5))))
show("a reference in a list", lambda: ray.get(kind_of.remote([ray.put(1)])))
show("a reference as keyword", lambda: ray.get(add.remote(1, c=ray.put(1))))
show("two returns", lambda: ray.get(two.remote()))
show("three for two", lambda: ray.get(three_for_two.remote()))
show("no returns", lambda: add.options(num_returns=0).remote(1))
show("options", lambda: ray.get(add.options(num_cpus=2, name="x").remote(1)))
show("recursion", lambda: ray.get(fib.remote(8)))
show("references returned", lambda: ray.get(ray.get(many.remote(3))))
show("ValueError", lambda: ray.get(fail.remote(ValueError, "x")))
show("ZeroDivisionError", lambda: ray.get(fail.remote(ZeroDivisionError)))
show("through another task", lambda: ray.get(get_failure.remote()))
show("an argument that failed", lambda: ray.get(add.remote(fail.remote(ValueError, "x"))))
show("one of a list failed", lambda: ray.get([add.remote(1), fail.remote(KeyError, "k")]))
show("custom exception", custom_code)
show("crash", lambda: ray.get(crash.remote()))
show("timeout", lambda: ray.get(sleep.remote(30), timeout=0.1))
show("direct call", lambda: add(1))
show("too few arguments", lambda: add.remote())
show("too many arguments", lambda: two.remote(1))
show("unknown keyword", lambda: add.remote(1, d=5))
show("put of a reference", lambda: ray.put(ray.put(1)))
show("get of a number", lambda: ray.get(1))
show("get of a list of numbers", lambda: ray.get([1]))
show("unknown option", lambda: ray.remote(num_cpu=1)(lambda: 1))
show("negative CPUs", lambda: ray.remote(num_cpus=-1)(lambda: 1))
show("a number made remote", lambda: ray.remote(5))

refs = [sleep.remote(0.4, "slow"), sleep.remote(0, "quick"), ray.put("put")]
ready, rest = ray.wait(refs, num_returns=2)
show("wait", lambda: (ray.get(ready), ray.get(rest)))
show("wait is capped", lambda: tuple(map(len, ray.wait(refs, num_returns=1))))
show("wait keeps order", lambda: ray.get(ray.wait(refs, num_returns=3)[0]))
show("wait timeout", lambda: tuple(map(len, ray.wait([sleep.remote(30)], timeout=0.05))))
show("wait timeout 0", lambda: tuple(map(len, ray.wait(refs, num_returns=3, timeout=0))))
show("wait for a failure", lambda: tuple(map(len, ray.wait([fail.remote(ValueError)], timeout=30))))
show("wait twice the same", lambda: ray.wait([refs[0], refs[0]]))
show("wait for one", lambda: ray.wait(refs[0]))
show("wait for a number", lambda: ray.wait([1]))
show("wait for none", lambda: ray.wait([]))
show("wait for 0", lambda: ray.wait(refs, num_returns=0))
show("wait for too many", lambda: ray.wait(refs, num_returns=4))
show("equal references", lambda: (refs[0] == refs[0], refs[0] == refs[1], len({*refs, *refs})))
show("is_initialized", lambda: ray.is_initialized())
show("init twice", lambda: ray.init())
show("init again", lambda: ray.init(ignore_reinit_error=True) is not None)
ray.shutdown()
show("after shutdown", lambda: ray.is_initialized())
