"""`python -m trainer.course DIRECTORY [LIMITS]` runs the student's code in a directory."""

import sys

from trainer.course.worker import main

if __name__ == "__main__":
    main(*sys.argv[1:])
