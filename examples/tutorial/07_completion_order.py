"""Completion order: handle each result when it is there, and keep a fixed number of tasks going.

The loop starts a new task whenever one is done, as a search does that decides by its results where to look next.
"""

import random
import time

import weft


@weft.remote
def score(candidate):
    time.sleep(random.uniform(0.0, 0.1))
    return candidate, -((candidate - 42) ** 2)


if __name__ == "__main__":
    with weft.init(num_cpus=4):
        candidates = iter(range(0, 100, 4))
        pending = [score.remote(next(candidates)) for _ in range(4)]
        scores = {}
        while pending:
            (done,), pending = weft.wait(pending, num_returns=1)
            candidate, value = weft.get(done)
            scores[candidate] = value
            another = next(candidates, None)
            if another is not None:
                pending.append(score.remote(another))
            assert len(pending) <= 4
        assert len(scores) == 25
        best = max(scores, key=scores.get)
        assert best in (40, 44)

        # The same without a loop of one's own, if the tasks are known beforehand.
        finished = [weft.get(reference)[0] for reference in weft.util.as_completed([score.remote(i) for i in range(8)])]
        assert sorted(finished) == list(range(8))
        print("done in this order:", finished)
    print("ok")
