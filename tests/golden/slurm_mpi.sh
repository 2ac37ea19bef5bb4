#!/bin/bash
#SBATCH '--job-name=shardyard/my sweep/ddp-100%'
#SBATCH '--comment=shardyard 12 34/56 pid:[78]'
#SBATCH '--chdir=/shared/results/my sweep/ddp-100%'
#SBATCH '--output=/shared/results/my sweep/ddp-100%%/launcher.log'
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=12

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
export OMPI_MCA_pml=ob1
export OMPI_MCA_btl=self,tcp
export OMPI_MCA_mpi_yield_when_idle=1
export OMPI_ALLOW_RUN_AS_ROOT=1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol --oneliner show node "$first" | sed -nE 's/.* NodeAddr=(\S+).*/\1/p')
export MASTER_ADDR

exec /shared/venv/bin/mpirun -n 4 --map-by ppr:2:node --bind-to none /shared/venv/bin/python -m trainer
