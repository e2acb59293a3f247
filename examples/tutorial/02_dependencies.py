"""Dependencies: a reference given to a task as an argument arrives as its value.

So a program writes a pipeline by passing on what the last step returned. Nothing is fetched in between: the texts
below go from worker to worker, and only the counts come back. The three pipelines run side by side, the steps of each
one after the other.
"""

from collections import Counter

import weft

BOOKS = {
    "sea": "The sea is blue. The sea is deep.",
    "wood": "The wood is green, the wood is dark.",
    "town": "A town is a town is a town.",
}


@weft.remote
def load(title):
    return BOOKS[title]


@weft.remote
def split(text):  # sees a string, whether it was called with a string or with a reference to one
    return [word.strip(".,").lower() for word in text.split()]


@weft.remote
def count(words):
    return Counter(words)


@weft.remote
def merge(*counters):
    return sum(counters, Counter())


if __name__ == "__main__":
    with weft.init(num_cpus=3):
        counts = [count.remote(split.remote(load.remote(title))) for title in BOOKS]
        total = weft.get(merge.remote(*counts))  # the only get
        assert total["is"] == 6 and total["town"] == 3 and total["sea"] == 2
        assert weft.get(count.remote(["a", "b", "a"])) == {"a": 2, "b": 1}  # plain values are fine as well

        # A reference inside a container stays a reference: the task decides what to fetch.
        @weft.remote
        def first_of(references):
            assert isinstance(references[0], weft.ObjectRef)
            return weft.get(references[0])

        assert weft.get(first_of.remote([load.remote("sea"), load.remote("wood")])) == BOOKS["sea"]
        print(total.most_common(3))
    print("ok")
