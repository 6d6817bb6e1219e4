"""Many runs at once: on this machine's cores and GPUs, on a Ray cluster, or on SLURM.

An engine only runs jobs. What is finished, begun or in use is read from the folders of runs, so any
number of drivers and workers may be killed, and the same command resumes.
"""
