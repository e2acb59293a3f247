"""Custom resources: names and amounts of your own, for what must not be used by too many at a time.

Here a license server hands out three licenses. Tasks that need one wait for it; the others do not.
"""

import time

import weft


def span(seconds):
    started = time.time()
    time.sleep(seconds)
    return started, time.time()


@weft.remote(resources={"license": 1})
def simulate():
    return span(0.2)


@weft.remote(resources={"license": 0.5}, num_cpus=0)
def preview():
    return span(0.2)


@weft.remote
def plot():
    return span(0.2)


def most_at_once(spans):
    return max(sum(other[0] <= started < other[1] for other in spans) for started, _ in spans)


if __name__ == "__main__":
    with weft.init(num_cpus=8, resources={"license": 3}):
        assert weft.cluster_resources()["license"] == 3

        assert most_at_once(weft.get([simulate.remote() for _ in range(7)])) <= 3
        assert most_at_once(weft.get([preview.remote() for _ in range(9)])) <= 6  # fractions are counted exactly

        # Tasks without a license are not held up by those that queue for one.
        queued = [simulate.remote() for _ in range(9)]
        assert len(weft.get([plot.remote() for _ in range(4)])) == 4
        assert weft.wait(queued, num_returns=9, timeout=0)[1]
        weft.get(queued)
    print("ok")
