import pathlib
import sys

# The toys of this room are imported by the processes that tests start, as users' packages are.
HERE = str(pathlib.Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
