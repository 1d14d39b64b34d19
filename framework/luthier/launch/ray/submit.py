"""Hand gangs that were written to a file to their Ray cluster, as a person does it again by hand.

python -m luthier.launch.ray.submit FOLDER/gangs.json
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE, RunError
from luthier.launch.ray.engine import submit_file


def main(words: Sequence[str]) -> int:
    """Submit, and print the name of each job; return the exit code.

    Args:
      words: The file.
    """
    if len(words) != 1:
        print("usage: python -m luthier.launch.ray.submit FOLDER/gangs.json", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        jobs = submit_file(pathlib.Path(words[0]))
    except RunError as error:
        print(f"luthier: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(job.id for job in jobs))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
