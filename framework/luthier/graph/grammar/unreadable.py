"""The exception of the grammar's parts; `apply` and `resolve` turn it into bad input."""

from __future__ import annotations

from luthier.errors import Problem


class Unreadable(Exception):
    """A statement, a value or a name cannot be read; `problem` says why."""

    def __init__(self, problem: Problem | str):
        self.problem = Problem(problem) if isinstance(problem, str) else problem
        super().__init__(str(self.problem))
