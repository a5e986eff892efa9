#!/usr/bin/env bash
# One batch: what SLURM says of yesterday's jobs where it is there, then everything that is new or changed.
set -euo pipefail
jobs=${FORENSICS_JOBS:?set FORENSICS_JOBS to the folder or URL with jobs}
fleet=${FORENSICS_FLEET:?set FORENSICS_FLEET to the folder of the fleet}
options=()
if command -v sacct >/dev/null; then
    said=$(mktemp)
    trap 'rm -f "$said"' EXIT
    sacct -a -X -P -S now-2days \
        -o JobID,JobName,State,ExitCode,ElapsedRaw,AllocTRES,NodeList,Start,End,WorkDir >"$said"
    options+=(--sacct "$said")
fi
[ -z "${FORENSICS_PODS:-}" ] || options+=(--pods "$FORENSICS_PODS")
[ -z "${FORENSICS_ENGINE:-}" ] || options+=(--engine "$FORENSICS_ENGINE")
[ -z "${FORENSICS_ALL:-}" ] || options+=(--all) # also jobs that ended well: they may have trained wrongly
[ -z "${FORENSICS_WEBHOOK:-}" ] || options+=(--webhook "$FORENSICS_WEBHOOK")
[ -z "${FORENSICS_SITE:-}" ] || options+=(--site "$FORENSICS_SITE")
code=0
forensics batch "$jobs" --out "$fleet" "${options[@]}" || code=$?
# 1: some jobs could not be analyzed; the fleet's pages name them, and the schedule has not failed.
[ "$code" -le 1 ]
