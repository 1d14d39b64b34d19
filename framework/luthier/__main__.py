"""`python -m luthier` is the command `luthier`."""

from luthier.cli.main import console

if __name__ == "__main__":
    console()
