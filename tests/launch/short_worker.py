"""A worker of short trials that compute nothing, and a study that is driven over such workers."""

import argparse
import json
import os
import pathlib
import queue
import signal
import sys
import threading
import time

from luthier.errors import EXIT_REQUEUE
from luthier.launch import Slices, link
from luthier.study import Lost, Reported, SliceInfo, TrialEnded, TrialWork, Work, write_result
from luthier.study.engines import Answer, Close, MessageWriter, Stop, read_messages

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.02"))


class ShortSlices(Slices):
    """Slices whose workers are this module."""

    worker = "short_worker"


def main(arguments):
    """Run trials until the driver says that it is over, or is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", type=pathlib.Path)
    parser.add_argument("--slice", type=int)
    parser.add_argument("--devices")
    options, _ = parser.parse_known_args(arguments)
    line = link.connect(options.driver, {"slice": options.slice}, 20.0)
    if line is None:
        return 0
    if options.devices == "broken":
        print("there are no such devices", flush=True)
        return 1
    pid = options.driver.parent / f"worker-{options.slice}.pid"
    pid.write_text(str(os.getpid()))
    writer, waiting = MessageWriter(line.sent), queue.Queue()

    def leave():
        writer.send(Lost(options.slice, "taken away", counts=False))
        os._exit(EXIT_REQUEUE)

    # The thread that the signal interrupts may hold the lock of the writer.
    signal.signal(signal.SIGTERM, lambda number, frame: threading.Thread(target=leave).start())
    threading.Thread(target=_hear, args=(line, waiting), daemon=True).start()
    writer.send(SliceInfo(options.slice, f"short-{options.slice}", 1))
    while True:
        message = waiting.get()
        if message is None:
            return 3
        if isinstance(message, Close):
            return 0
        if isinstance(message, Work):
            for trial in message.trials:
                _run(options.slice, trial, message.asks, writer, waiting)


def _hear(line, waiting):
    try:
        for message in read_messages(line.received):
            waiting.put(message)
    finally:
        os._exit(3)


def _run(slice, work: TrialWork, asks, writer, waiting):
    values = json.loads(pathlib.Path(work.directory, "config.json").read_text())
    rate = values["graph"]["arguments"].get("rate", 1e-2)
    run = pathlib.Path(work.directory, "run")
    run.mkdir(exist_ok=True)
    saved = run / "saved.json"
    series = json.loads(saved.read_text()) if saved.exists() else []
    for step in range(len(series) + 1, 5):
        time.sleep(STEP_SECONDS)
        metrics = {"held_out/loss": rate + 1 / step}
        series.append((step, metrics))
        (run / "saving").write_text(json.dumps(series))
        (run / "saving").rename(saved)
        writer.send(Reported(slice, work.trial, work.fence, step, metrics))
        while asks and not isinstance(waiting.get(), Answer | Stop | Close):
            pass
    facts = {"step_seconds": STEP_SECONDS, "device_seconds": 4 * STEP_SECONDS}
    result = {"metrics": series[-1][1], "series": series, "steps": 4, "facts": facts}
    ended = TrialEnded(slice, work.trial, work.fence, "complete", result=result)
    write_result(work.directory, ended)
    writer.send(ended)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
