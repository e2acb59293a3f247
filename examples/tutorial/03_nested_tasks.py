"""Nested tasks: a task may start tasks and wait for them.

While it waits it lends its CPU to others, so nesting deeper than there are CPUs comes to an end as well. Here a list is
sorted by splitting it until the pieces are small.
"""

import random

import weft


@weft.remote
def sort(items, smallest):
    if len(items) <= smallest:
        return sorted(items)
    pivot = items[len(items) // 2]
    below = sort.remote([item for item in items if item < pivot], smallest)
    above = sort.remote([item for item in items if item > pivot], smallest)
    same = [item for item in items if item == pivot]
    return weft.get(below) + same + weft.get(above)


@weft.remote
def spawn(count):
    # References can be returned too: the caller that gets this list decides when to wait.
    return [square.remote(number) for number in range(count)]


@weft.remote
def square(number):
    return number * number


if __name__ == "__main__":
    with weft.init(num_cpus=2):
        items = [random.randrange(1000) for _ in range(2000)]
        assert weft.get(sort.remote(items, 300)) == sorted(items)

        references = weft.get(spawn.remote(5))
        assert weft.get(references) == [0, 1, 4, 9, 16]
    print("ok")
