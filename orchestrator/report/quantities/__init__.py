"""The registry of quantities: every number of a run is described here once.

The CSV files and the tables are made from these entries, and findings compare them.
"""

from __future__ import annotations

from orchestrator.report.quantities.accuracy import ACCURACIES
from orchestrator.report.quantities.communication import COMMUNICATION
from orchestrator.report.quantities.containers import CONTAINERS
from orchestrator.report.quantities.data_partition import PARTITIONS
from orchestrator.report.quantities.faults import FAULTS
from orchestrator.report.quantities.learning import LEARNING
from orchestrator.report.quantities.links import LINKS
from orchestrator.report.quantities.model_partition import MODEL_PARTITIONS
from orchestrator.report.quantities.stragglers import STRAGGLERS
from orchestrator.report.quantities.times import TIMES

QUANTITIES = (
    TIMES
    | ACCURACIES
    | LEARNING
    | COMMUNICATION
    | LINKS
    | STRAGGLERS
    | PARTITIONS
    | MODEL_PARTITIONS
    | CONTAINERS
    | FAULTS
)

# Those that code names.
TRAIN_S = QUANTITIES["train_s"]
WALL_S = QUANTITIES["wall_s"]
STEP_S = QUANTITIES["step_s"]
SPEEDUP = QUANTITIES["speedup"]
CPU_TIME_SPEEDUP = QUANTITIES["cpu_time_speedup"]
COMMUNICATE_S = QUANTITIES["communicate_s"]
WAIT_S = QUANTITIES["wait_s"]
EXCHANGE_SHARE = QUANTITIES["exchange_share"]
STARTUP_S = QUANTITIES["startup_s"]
ELAPSED_S = QUANTITIES["elapsed_s"]
ACCURACY = QUANTITIES["accuracy"]
LOCAL_ACCURACY = QUANTITIES["local_accuracy_mean"]
AVERAGING_GAIN = QUANTITIES["averaging_gain"]
TIME_TO_TARGET_S = QUANTITIES["time_to_target_s"]
ROUNDS_TO_TARGET = QUANTITIES["rounds_to_target"]
FIRST_LR = QUANTITIES["lr_first_epoch"]
LAST_LR = QUANTITIES["lr_last_epoch"]
BYTES_SENT_PER_RANK = QUANTITIES["bytes_sent_per_rank"]
BYTES_PER_STEP = QUANTITIES["bytes_sent_per_rank_per_step"]
EXCHANGE_S_PER_STEP = QUANTITIES["exchange_s_per_step"]
STALENESS = QUANTITIES["staleness_mean"]
STALENESS_MAX = QUANTITIES["staleness_max"]
COVERAGE = QUANTITIES["coverage"]
OVERLAP = QUANTITIES["overlap"]
COVERAGE_WHOLE_RUN = QUANTITIES["coverage_whole_run"]
JS_MEAN = QUANTITIES["js_divergence_mean_bits"]
PEAK_MEMORY_MIB = QUANTITIES["peak_memory_mib"]
LOAD_BALANCE = QUANTITIES["load_balance"]
BUBBLE = QUANTITIES["bubble_share"]
BUBBLE_FORMULA = QUANTITIES["bubble_share_formula"]
SPLIT_POINT_BYTES_PER_STEP = QUANTITIES["split_point_bytes_per_step_max"]
REPEATED_STEPS = QUANTITIES["repeated_steps"]
SAMPLES_LOST = QUANTITIES["samples_lost"]
