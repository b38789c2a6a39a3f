"""A backend of torch.distributed without a line of C++, for a torch that this build has none for.

It makes the same calls as the backend in C++ and meets it in the same way, so that ranks of one
group may have either. It costs some ten microseconds more for a call, and cannot do all: see
docs/PYTHON.md.
"""

from .group import create, end_all

__all__ = ["create", "end_all"]
