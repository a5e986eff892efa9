"""Scheduled analysis of many jobs, and what they tell together.

    listing ─▶ jobs (schedulers say how they ended) ─▶ engine ─▶ a process per job (job_process), forked from a warm one
                                                                      │ report.html, report.json, case.duckdb
                                                                      ▼
                              pages, metrics, gate ◀─ views (views.sql) ◀─ rows: one Parquet file per job

A FLEET is a folder:

    lock             held by the batch at work; the system releases it however that ends
    journal.jsonl    append-only: which content of which job was analyzed by which edition, and how that ended
    jobs/KEY/        what `forensics analyze` writes for one job; reviews.jsonl beside it is kept
    rows/KEY.parquet one row per job with lists of findings, hosts, devices, metrics and unknown errors
    packed/*.parquet rows of many jobs, so that queries open few files; the newest row of a job counts
    index.html, pages/, rules/, metrics.prom

Nothing is lost by a kill: a job's row is renamed into place after its report, and only then told to the journal. A
start without an end in the journal is a job to do again; after three of them the job is suspected to end whoever
analyzes it, and is put aside like one that crashed, took too much memory or too long, until its content, the
program's edition or the bounds change.

What is new is told in three steps, the cheapest first: names, sizes and times of the files as before (nothing is
read); their content as before (read by the child); else the job is analyzed. The *edition* is a hash of the package,
its rules, the site's rules and the configuration.
"""
