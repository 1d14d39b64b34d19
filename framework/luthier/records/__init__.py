"""Records of a run: its directory, metrics, console, media and mirrors."""

from luthier.records.catalogue import RunSummary, find, list_runs, summarize
from luthier.records.console import Console
from luthier.records.directory import Configuration, RunDirectory, name_problem, new_id
from luthier.records.events import (
    Ended,
    Evaluation,
    Event,
    Header,
    Histogram,
    Image,
    Notice,
    Sample,
    Saved,
    Step,
)
from luthier.records.goodput import Account, Goodput, account_of, read_spans
from luthier.records.media import Histograms, Images, Samples
from luthier.records.metrics_file import CutBack, Recorded, cut_back, read_events, read_metrics
from luthier.records.recorder import Recorder, Records, Sink, SinkSettings
from luthier.records.source import Source, read_facts, read_source
from luthier.records.status import Status, Watchdog
from luthier.records.weights_and_biases import Mirrored, Summary, Wandb, mirror_summary, rebuild
from luthier.storage import Holder, Lock

__all__ = [
    "Account",
    "Configuration",
    "Console",
    "CutBack",
    "Ended",
    "Evaluation",
    "Event",
    "Goodput",
    "Header",
    "Histogram",
    "Histograms",
    "Holder",
    "Image",
    "Images",
    "Lock",
    "Mirrored",
    "Notice",
    "Recorded",
    "Recorder",
    "Records",
    "RunDirectory",
    "RunSummary",
    "Sample",
    "Samples",
    "Saved",
    "Sink",
    "SinkSettings",
    "Source",
    "Status",
    "Step",
    "Summary",
    "Wandb",
    "Watchdog",
    "account_of",
    "cut_back",
    "find",
    "list_runs",
    "mirror_summary",
    "name_problem",
    "new_id",
    "read_events",
    "read_facts",
    "read_metrics",
    "read_source",
    "read_spans",
    "rebuild",
    "summarize",
]
