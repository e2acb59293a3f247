"""A tree reduce: combine many values in few rounds, pairs at a time.

In a chain every step waits for the one before. In a tree half as many values are left after each round, and the pairs
of a round are combined side by side. Only references are handled here; the values stay with the workers.
"""

import numpy as np
import weft


@weft.remote
def histogram(seed):
    return np.bincount(np.random.default_rng(seed).integers(0, 10, 10_000), minlength=10)


@weft.remote
def combine(left, right):
    (left_depth, left_counts), (right_depth, right_counts) = left, right
    return max(left_depth, right_depth) + 1, left_counts + right_counts


@weft.remote
def leaf(counts):
    return 0, counts


def reduce_tree(references):
    """A queue: two from the front, their combination to the back."""
    queue = list(references)
    while len(queue) > 1:
        queue.append(combine.remote(queue.pop(0), queue.pop(0)))
    return queue[0]


def reduce_chain(references):
    """The same number of tasks, each behind the other."""
    result, *others = references
    for other in others:
        result = combine.remote(result, other)
    return result


if __name__ == "__main__":
    with weft.init(num_cpus=4):
        leaves = [leaf.remote(histogram.remote(seed)) for seed in range(32)]
        tree_depth, from_tree = weft.get(reduce_tree(leaves))
        chain_depth, from_chain = weft.get(reduce_chain(leaves))
        assert np.array_equal(from_tree, from_chain)
        assert from_tree.sum() == 32 * 10_000
        assert (tree_depth, chain_depth) == (5, 31)
        print(f"32 values in {tree_depth} rounds instead of {chain_depth}")
    print("ok")
