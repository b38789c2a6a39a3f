"""Errors of arguments, told with the rank and the call."""

import functools


def named(call):
    """A decorator: what is wrong with arguments is told with the rank and the call."""

    def wrap(function):
        @functools.wraps(function)
        def method(self, *arguments):
            try:
                return function(self, *arguments)
            except (TypeError, ValueError) as error:
                told = f"brigade, rank {self._rank}, {call}: {error}"
                raise type(error)(told) from error

        return method

    return wrap
