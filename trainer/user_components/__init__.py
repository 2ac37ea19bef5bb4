"""Components of users, from an import path: wrappers that hold what a run must know without their code."""
