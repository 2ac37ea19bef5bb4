#!/bin/bash
#SBATCH '--job-name=shardyard/my sweep/ddp-100%'
#SBATCH '--comment=shardyard 12 34/56 pid:[78]'
#SBATCH '--chdir=/shared/results/my sweep/ddp-100%'
#SBATCH '--output=/shared/results/my sweep/ddp-100%%/launcher.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=62

# Results and events go through a directory that all nodes share.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    bash -c '[ "$(cat '"'"'/shared/results/my sweep/ddp-100%/live/token'"'"' 2>/dev/null)" = 0123abcd ] || { echo "shardyard: node $SLURMD_NODENAME does not see" '"'"'/shared/results/my sweep/ddp-100%'"'"'; exit 1; }' ||
    exit 66

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
export SHARDYARD_CHECKPOINTS='/shared/results/my sweep/ddp-100%/checkpoints/slurm'

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol --oneliner show node "$first" | sed -nE 's/.* NodeAddr=(\S+).*/\1/p')
export MASTER_ADDR

# The run continues after its time limit, preemption or the failure of a node.
export SHARDYARD_REQUEUES=${SLURM_RESTART_COUNT:-0}
[ "$SHARDYARD_REQUEUES" -eq 0 ] || echo "shardyard: requeue $SHARDYARD_REQUEUES"
[ "$SHARDYARD_REQUEUES" -le 10 ] || exit 69
export SHARDYARD_STOP='/shared/results/my sweep/ddp-100%/live/stop'
rm -rf "$SHARDYARD_STOP"
trap 'mkdir -p "$SHARDYARD_STOP" && echo "its time limit" >"$SHARDYARD_STOP/request"' USR1
srun --ntasks=2 --distribution=block --mpi=none --kill-on-bad-exit=1 /shared/venv/bin/python -m trainer &
while wait "$!"; code=$?; kill -0 "$!" 2>/dev/null; do :; done
if [ -e "$SHARDYARD_STOP/saved" ]; then
    echo "shardyard: stopped at a checkpoint: $(cat "$SHARDYARD_STOP/request")"
elif [ ! -e "$SHARDYARD_STOP/finished" ] &&
    scontrol -o show job "$SLURM_JOB_ID" | grep -q " PreemptTime=[0-9]"; then
    echo "shardyard: preempted"  # mpirun ends at once, and with exit code 0
else
    # Slurm requeues the job of a node that has failed, but it may notice minutes later.
    [ -e "$SHARDYARD_STOP/finished" ] || until srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 true; do sleep 5; done
    exit "$code"
fi
scontrol requeue "$SLURM_JOB_ID" || exit 70
exec sleep 60  # Slurm ends this script
