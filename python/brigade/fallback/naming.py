"""What a rank calls itself in errors, and those of arguments, told with the rank and the call."""

import functools


# Ranks of a group that are listed, unless they lie evenly.
TOLD = 16


def who_is(rank, ranks):
    """What a rank calls itself: its number in its group and, where the default group numbers ranks
    otherwise, that list of theirs. Whatever else is said of ranks counts within the list, from 0.
    """
    if list(ranks) == list(range(len(ranks))):
        return f"rank {rank}"
    is_even = len({after - before for before, after in zip(ranks, ranks[1:])}) <= 1
    told = ranks if len(ranks) <= TOLD else ranks[: 2 if is_even else TOLD]
    rest = "" if len(told) == len(ranks) else f" .. {ranks[-1]}"
    return f"rank {rank} of the group [{', '.join(map(str, told))}{rest}]"


def named(call):
    """A decorator: what is wrong with arguments is told with the rank and the call."""

    def wrap(function):
        @functools.wraps(function)
        def method(self, *arguments):
            try:
                return function(self, *arguments)
            except (TypeError, ValueError) as error:
                told = f"brigade, {self._who}, {call}: {error}"
                raise type(error)(told) from error

        return method

    return wrap
