"""The signatures of the functions at the root, for type checkers and editors."""

from luthier import checkpoint as checkpoint
from luthier import data as data
from luthier import durations as durations
from luthier import errors as errors
from luthier import graph as graph
from luthier import launch as launch
from luthier import layers as layers
from luthier import lazy as lazy
from luthier import losses as losses
from luthier import metrics as metrics
from luthier import models as models
from luthier import optim as optim
from luthier import parallel as parallel
from luthier import planner as planner
from luthier import program as program
from luthier import recipes as recipes
from luthier import records as records
from luthier import study as study
from luthier import tasks as tasks
from luthier import trainer as trainer
from luthier.cli.experiments import diff as diff
from luthier.cli.experiments import experiment as experiment
from luthier.installation import install as install
from luthier.planner.planning import plan as plan
from luthier.records.catalogue import list_runs
from luthier.study.sweep import sweep as sweep
from luthier.trainer.run import run
from luthier.trainer.trained import evaluate_run
from luthier.view.plot import plot as plot

__version__: str
evaluate = evaluate_run
runs = list_runs
train = run
