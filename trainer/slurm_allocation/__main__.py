"""`python -m trainer.slurm_allocation DIRECTORY [COMMAND…]`: leads an allocation.

DIRECTORY has the requests of the orchestrator. COMMAND starts the warm nodes, if there are any.
"""

import sys
from pathlib import Path

from trainer.slurm_allocation.leader import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
