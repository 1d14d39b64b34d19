"""A worker of the local engine that computes nothing, and dies of some trials."""

import argparse
import os
import pathlib
import signal
import sys

from simulated_engine import loss, make_ended, read_values

from luthier.study import SliceInfo, Work, protocol
from luthier.study.engines import Close, MessageWriter, read_messages


def main(arguments):
    """Run trials; one of width 16 kills its worker, as a crash of a kernel would."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slice", type=int)
    options, _ = parser.parse_known_args(arguments)
    writer = MessageWriter(sys.stdout.buffer)
    writer.send(SliceInfo(options.slice, str(options.slice), 1))
    for message in read_messages(sys.stdin.buffer):
        if isinstance(message, Close):
            return 0
        for work in message.trials if isinstance(message, Work) else ():
            values = read_values(work.directory)
            if values.get("width") == 16 and "LEAVE_WITH" in os.environ:
                mark = pathlib.Path(work.directory, "left")
                if not mark.exists():
                    mark.touch()
                    return int(os.environ["LEAVE_WITH"])
            elif values.get("width") == 16:
                print(f"about to die of trial {work.trial}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), int(os.environ.get("DEATH_SIGNAL", signal.SIGKILL)))
            if os.environ.get("BROKEN_SLICE") == str(options.slice):
                os.kill(os.getpid(), signal.SIGKILL)
            series = [(4, {"held_out/loss": loss(values, 4)})]
            ended = make_ended(options.slice, work, "complete", series)
            protocol.write_result(work.directory, ended)
            writer.send(ended)
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
