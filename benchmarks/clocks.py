"""What setting the clocks of many recorders costs: `python benchmarks/clocks.py [RANKS…]`.

For each number of ranks a job is simulated whose hosts' clocks differ by up to 2 s, and put into a case as its dumps
would be; then its clocks are aligned. Prints CPU seconds, peak memory, and how far what was found is from the truth.
"""

from __future__ import annotations

import random
import resource
import sys
import time

from benchmarks.waits import SHAPES, loaded, simulator
from forensics.models.clocks import align_clocks

_SKEW_NS = 2_000_000_000


def main(worlds: list[int]) -> None:
    simulated = simulator()
    for world in worlds:
        tensor, pipeline = SHAPES.get(world, (8, 4))
        con = loaded(simulated.simulate(world, fault="stops", tensor=tensor, pipeline=pipeline, n_steps=12), ring=200)
        drawn = random.Random(world)
        skews = [drawn.randrange(-_SKEW_NS, _SKEW_NS) for _ in range(world)]
        con.execute("CREATE TEMP TABLE skew (id INTEGER, ns BIGINT)")
        con.executemany("INSERT INTO skew VALUES (?, ?)", list(enumerate(skews)))
        con.execute(
            "UPDATE collective SET ts_ns = ts_ns + s.ns + 1795952507000000000,"
            " completed_ns = CASE WHEN retired THEN ts_ns + s.ns + 1795952507000100000 END"
            " FROM skew AS s WHERE s.id = collective.artifact_id"
        )
        rows = con.execute("SELECT count(*), count(completed_ns) FROM collective").fetchone()
        start = time.process_time(), time.perf_counter()
        align_clocks(con)
        spent = time.process_time() - start[0], time.perf_counter() - start[1]
        found = con.execute("SELECT id, clock_offset_ns, clock_error_ns FROM artifact ORDER BY id").fetchall()
        truth = [skews[0] - skew for skew in skews]
        off = [abs(offset - found[0][1] - true) for (_, offset, _), true in zip(found, truth, strict=True)]
        wrong = sum(gap > row[2] + found[0][2] for gap, row in zip(off, found, strict=True))
        n_rests = con.execute("SELECT count(*) FROM clock_match").fetchone()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{world} dumps, {rows} calls, ended: {spent[0]:.1f} CPU s, {spent[1]:.1f} s, peak {peak} MiB,"
            f" {n_rests} matches; at most {max(off) / 1e9:.3f} s off, {wrong} beyond what is stated",
            flush=True,
        )
        con.close()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [256, 768, 4096])
