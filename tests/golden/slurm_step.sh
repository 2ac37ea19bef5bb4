#!/bin/bash
export OMP_NUM_THREADS=1
export MKL_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export NUMEXPR_NUM_THREADS=1
export SHARDYARD_SPEC='/shared/results/my sweep/ddp-100%/spec.json'
export SHARDYARD_DATA=/shared/data
export SHARDYARD_OUT='/shared/results/my sweep/ddp-100%/live'
export SHARDYARD_CONSOLE='/shared/results/my sweep/ddp-100%/node-{node}.log'
export SHARDYARD_END_WITH_PARENT=1
export PYTHONPATH=/shared/shardyard
exec srun --ntasks=2 --distribution=block --mpi=none --kill-on-bad-exit=1 --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 bash -c 'exec "$@" "shardyard-$SLURM_JOB_ID-$SLURMD_NODENAME"' bash /shared/venv/bin/python -S -E /shared/shardyard/trainer/warm/client.py
