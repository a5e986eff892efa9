"""One batch on SLURM nodes: asks for Dask workers through dask-jobqueue, runs the batch on them, gives them back.

    pip install 'torch-forensics[dask]' dask-jobqueue
    python forensics-dask-slurm.py JOBS FLEET [--nodes 4] [--cores 16] [--memory 48GB] [--walltime 04:00:00] [-- …]

JOBS, FLEET and the Python environment must lie on a file system that all nodes share. Options after `--` are those of
`forensics batch`. A worker analyzes a job on each of its cores; a worker that is lost is replaced, its jobs are done
again elsewhere.
"""

import argparse
import subprocess
import sys

from dask_jobqueue import SLURMCluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs")
    parser.add_argument("fleet")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--memory", default="48GB")
    parser.add_argument("--walltime", default="04:00:00")
    parser.add_argument("--partition")
    parser.add_argument("--account")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    with SLURMCluster(
        cores=given.cores,
        processes=1,
        memory=given.memory,
        walltime=given.walltime,
        queue=given.partition,
        account=given.account,
        job_name="forensics",
        death_timeout=300,  # a worker without its scheduler ends
        # The batch bounds the memory of each job; Dask's own bounds would end workers with good jobs on them.
        worker_extra_args=["--memory-limit", "0"],
        scheduler_options={"dashboard": False},
    ) as cluster:
        cluster.scale(jobs=given.nodes)
        engine = "dask://" + cluster.scheduler_address.removeprefix("tcp://")
        batch = [sys.executable, "-m", "forensics.cli", "batch", given.jobs, "--out", given.fleet, "--engine", engine]
        return subprocess.run([*batch, *options], check=False).returncode  # noqa: S603 - a list of words


if __name__ == "__main__":
    sys.exit(main())
