"""Where the jobs of a batch run: in a pool on this machine, or on a Dask cluster that is there already.

Both call `job_runner.run_job`, so results are the same. On a cluster all workers need the fleet's folder, and local
roots, under the same paths (a shared file system); roots that are URLs are fetched by the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from forensics.errors import ForensicsError
from forensics.fleet.job_runner import Order, Result, close_servers, run_job, stop_all, warm_up

_AHEAD = 2  # orders that each Dask worker thread has waiting
_RETRIES = 2  # of a job whose worker died, beyond what the scheduler allows


def run_orders(
    orders: Iterable[Order], engine: str, workers: int, on_start: Callable[[Order], None]
) -> Iterator[Result]:
    """Results as they come. `on_start` is called before a job can begin. Raises ForensicsError for a bad engine."""
    if engine == "local":
        return _run_locally(orders, workers, on_start)
    if engine.startswith("dask://"):
        return _run_on_dask(orders, engine.removeprefix("dask://"), on_start)
    raise ForensicsError(f"engine: {engine!r}; expected local, dask://HOST:PORT or dask:///SCHEDULER-FILE")


def _run_locally(orders: Iterable[Order], workers: int, on_start: Callable[[Order], None]) -> Iterator[Result]:
    waiting = iter(orders)
    running: set[Future[Result]] = set()
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                for order in islice(waiting, workers - len(running)):
                    if not running:
                        warm_up(order)  # a kill while that is done is no job's fault
                    on_start(order)
                    running.add(pool.submit(run_job, order))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:  # also on Ctrl-C and SIGTERM: the pool would wait for its jobs
            for future in running:
                future.cancel()
            if running:
                stop_all()
            close_servers()


def _run_on_dask(orders: Iterable[Order], address: str, on_start: Callable[[Order], None]) -> Iterator[Result]:
    try:
        from distributed import Client
        from distributed import wait as wait_for
    except ImportError as error:
        raise ForensicsError(f"engine: {error}; expected Dask; install torch-forensics[dask]") from error
    if address.startswith("/") and not Path(address).is_file():  # the client would wait for it without end
        raise ForensicsError(f"dask://{address}: not found; expected the file that dask-scheduler wrote")
    try:
        target = {"scheduler_file": address} if address.startswith("/") else {"address": f"tcp://{address}"}
        client = Client(**target, timeout="30s")
    except (OSError, ValueError) as error:
        raise ForensicsError(f"dask://{address}: no scheduler answers ({error}); expected a running cluster") from error
    waiting = iter(orders)
    running: dict[Any, Order] = {}
    with client:
        while True:
            most = max(1, _AHEAD * sum(client.nthreads().values()))
            for order in islice(waiting, most - len(running)):
                on_start(order)
                # A run's own key: the same job of an earlier run must not be taken for done.
                key = f"forensics-{order.run}-{order.key}"
                running[client.submit(run_job, order, key=key, pure=False, retries=_RETRIES)] = order
            if not running:
                return
            done, _ = wait_for(list(running), return_when="FIRST_COMPLETED")
            for future in done:
                order = running.pop(future)
                fault = future.exception()
                if fault is None:
                    yield future.result()
                elif isinstance(fault, ForensicsError):  # no job's fault
                    raise fault
                else:  # KilledWorker: the job ended every worker that tried it
                    reason = f"on the cluster: {type(fault).__name__}: {fault}"[:500]
                    yield Result(order.key, "not-analyzed", reason=reason)
                future.release()
