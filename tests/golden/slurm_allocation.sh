#!/bin/bash
#SBATCH '--job-name=shardyard/my sweep'
#SBATCH '--comment=shardyard 12 34/56 pid:[78]'
#SBATCH '--chdir=/shared/results/my sweep/allocation'
#SBATCH '--output=/shared/results/my sweep/allocation/job-%j.log'
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=3
#SBATCH --time=24
#SBATCH --partition=long
#SBATCH --qos=high

# Results and events go through a directory that all nodes share.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    bash -c '[ "$(cat '"'"'/shared/results/my sweep/allocation/token'"'"' 2>/dev/null)" = 0123abcd ] || { echo "shardyard: node $SLURMD_NODENAME does not see" '"'"'/shared/results/my sweep'"'"'; exit 1; }' ||
    exit 66

export PYTHONPATH=/shared/shardyard
export SLURM_OVERLAP=1

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol --oneliner show node "$first" | sed -nE 's/.* NodeAddr=(\S+).*/\1/p')
export MASTER_ADDR

exec /shared/venv/bin/python -m trainer.node lead '{"count":3,"agent":["srun","--nodes=1","--ntasks=1","--cpus-per-task=6","--mpi=none","--relative={number}","bash","-c","exec \"$@\" \"$MASTER_ADDR\" \"/tmp/shardyard-agent-0123abcd-$SLURM_JOB_ID-$SLURMD_NODENAME\"","bash","/shared/venv/bin/python","-m","trainer.node","agent","node"],"launcher":["/shared/venv/bin/python","-m","trainer.node","agent","launcher","localhost"],"channel":"/shared/results/my sweep/allocation"}'
