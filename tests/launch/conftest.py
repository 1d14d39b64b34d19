import pathlib
import sys

# What groups run is imported by processes that the tests start, as users' packages are.
HERE = pathlib.Path(__file__).parent
for folder in (str(HERE), str(HERE.parent / "study")):
    if folder not in sys.path:
        sys.path.insert(0, folder)
