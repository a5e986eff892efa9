-- The case: one DuckDB file per investigated job. This file is the contract between formats, models, rules and
-- the report. Units are in the names: *_ns integer nanoseconds (since the Unix epoch for ts_ns), *_bytes bytes,
-- *_ratio 0 to 1, n_* counts. Addresses, correlations and checksums are unsigned 64-bit.
-- Event tables start with artifact_id, row, proc_id, rank, step, ts_ns.

CREATE TABLE artifact (
    id INTEGER PRIMARY KEY,
    path VARCHAR NOT NULL,
    sha256 VARCHAR NOT NULL,
    bytes BIGINT NOT NULL,
    format VARCHAR,
    version INTEGER,
    quality VARCHAR NOT NULL,
    bad_byte BIGINT,
    lost_bytes BIGINT,
    clock VARCHAR NOT NULL,
    clock_offset_ns BIGINT,
    clock_error_ns BIGINT,
    timeline VARCHAR,
    modified_ns BIGINT,
    run VARCHAR
);
COMMENT ON TABLE artifact IS 'One file that the job left behind, in the order of its path';
COMMENT ON COLUMN artifact.id IS 'Number of the artifact in this case';
COMMENT ON COLUMN artifact.path IS 'Path relative to the analyzed folder; ARCHIVE!MEMBER inside an archive';
COMMENT ON COLUMN artifact.sha256 IS 'SHA-256 of the file as it lies there (compressed), hexadecimal';
COMMENT ON COLUMN artifact.bytes IS 'Size as it lies there, bytes';
COMMENT ON COLUMN artifact.format IS 'Name of the format that loaded it (forensics formats); NULL when unknown';
COMMENT ON COLUMN artifact.version IS 'Version of that format''s loader';
COMMENT ON COLUMN artifact.quality IS 'complete | repaired (all of it, after mending) | partial (something was lost) | unknown (no format) | failed (nothing recovered) | empty';
COMMENT ON COLUMN artifact.bad_byte IS 'First damaged position, byte offset in the decompressed content; NULL when undamaged';
COMMENT ON COLUMN artifact.lost_bytes IS 'Bytes that could not be recovered; NULL when unknown';
COMMENT ON COLUMN artifact.clock IS 'Clock that wrote its times: epoch (absolute) | local (wall time without a zone) | yearless (the same without a year) | dayless (hours alone) | boot (since host boot) | relative (own origin) | none';
COMMENT ON COLUMN artifact.clock_offset_ns IS 'What was added to the artifact''s own times to give ts_ns, beside the year, ns; NULL without times';
COMMENT ON COLUMN artifact.clock_error_ns IS 'Half-width of the interval in which ts_ns of this artifact is right, ns; NULL without times';
COMMENT ON COLUMN artifact.timeline IS 'Axis that ts_ns lies on: epoch | wall (zone unknown) | wall without year | boot HOST | own N. Only times of one timeline can be compared, and within the sum of both errors';
COMMENT ON COLUMN artifact.modified_ns IS 'Last change as the file system tells it, ns since the epoch; NULL inside archives';
COMMENT ON COLUMN artifact.run IS 'Folder of the run that it belongs to, where several runs of a program lie beside each other; NULL where they do not, and outside of them';

CREATE TABLE clock_match (
    artifact_id INTEGER NOT NULL,
    row BIGINT,
    line BIGINT,
    other_artifact_id INTEGER,
    other_row BIGINT,
    other_line BIGINT,
    kind VARCHAR NOT NULL,
    difference_ns BIGINT,
    used BOOLEAN NOT NULL,
    detail VARCHAR NOT NULL
);
COMMENT ON TABLE clock_match IS 'What the clock of each artifact was set by: events that two artifacts tell of, zones, years and days';
COMMENT ON COLUMN clock_match.artifact_id IS 'artifact.id whose clock is set';
COMMENT ON COLUMN clock_match.row IS 'row of the event in it, in the table that holds events of this kind; NULL for zones, years and days';
COMMENT ON COLUMN clock_match.line IS 'Its line from 1, when it has lines';
COMMENT ON COLUMN clock_match.other_artifact_id IS 'artifact.id by which it is set; NULL for zones, years and days';
COMMENT ON COLUMN clock_match.other_row IS 'row of the same event in that artifact';
COMMENT ON COLUMN clock_match.other_line IS 'Its line from 1, when it has lines';
COMMENT ON COLUMN clock_match.kind IS 'kernel-message | allocation-failed | worker-failed | message | collective-enqueued | collective-end | step-metric | zone | year | day';
COMMENT ON COLUMN clock_match.difference_ns IS 'What this event says must be added to the artifact''s own times, ns';
COMMENT ON COLUMN clock_match.used IS 'Agrees with the others, so that the offset rests on it';
COMMENT ON COLUMN clock_match.detail IS 'The event, or how the zone, year or day is known';

CREATE TABLE ingest_warning (
    artifact_id INTEGER NOT NULL,
    byte BIGINT,
    line BIGINT,
    code VARCHAR NOT NULL,
    message VARCHAR NOT NULL,
    hides VARCHAR NOT NULL
);
COMMENT ON TABLE ingest_warning IS 'What could not be read, and what that may hide';
COMMENT ON COLUMN ingest_warning.artifact_id IS 'artifact.id';
COMMENT ON COLUMN ingest_warning.byte IS 'Byte offset in the decompressed content, when known';
COMMENT ON COLUMN ingest_warning.line IS 'Line number from 1, when known';
COMMENT ON COLUMN ingest_warning.code IS 'Short stable name: truncated, bad-json, refused-pickle, …';
COMMENT ON COLUMN ingest_warning.message IS 'What was found and what was expected';
COMMENT ON COLUMN ingest_warning.hides IS 'Which questions can no longer be answered because of it';

CREATE TABLE coverage (
    artifact_id INTEGER NOT NULL,
    proc_id INTEGER,
    capability VARCHAR NOT NULL,
    from_ns BIGINT,
    to_ns BIGINT,
    complete BOOLEAN NOT NULL,
    n_read BIGINT NOT NULL,
    n_kept BIGINT NOT NULL
);
COMMENT ON TABLE coverage IS 'What the evidence of one process over one time span can support; rules ask for capabilities';
COMMENT ON COLUMN coverage.artifact_id IS 'artifact.id';
COMMENT ON COLUMN coverage.proc_id IS 'proc.id; NULL when the evidence belongs to the job as a whole';
COMMENT ON COLUMN coverage.capability IS 'capability.name';
COMMENT ON COLUMN coverage.from_ns IS 'Start of the covered span, ns since the epoch; NULL unknown';
COMMENT ON COLUMN coverage.to_ns IS 'End of the covered span, ns since the epoch; NULL unknown';
COMMENT ON COLUMN coverage.complete IS 'Nothing inside the span is missing';
COMMENT ON COLUMN coverage.n_read IS 'Records read from the artifact';
COMMENT ON COLUMN coverage.n_kept IS 'Records that became rows';

CREATE TABLE capability (
    name VARCHAR PRIMARY KEY,
    meaning VARCHAR NOT NULL,
    capture VARCHAR NOT NULL
);
COMMENT ON TABLE capability IS 'The fixed list of capabilities (states.py) and how to capture each next time';
COMMENT ON COLUMN capability.name IS 'Name used by rules and coverage';
COMMENT ON COLUMN capability.meaning IS 'What evidence with this capability can show';
COMMENT ON COLUMN capability.capture IS 'Command or setting that leaves such evidence next time';

CREATE TABLE proc (
    id INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    host VARCHAR,
    rank INTEGER,
    local_rank INTEGER,
    world_size INTEGER,
    pid BIGINT,
    device INTEGER,
    start_ns BIGINT,
    end_ns BIGINT,
    exit_code INTEGER,
    signal INTEGER,
    rank_origin VARCHAR NOT NULL,
    local_rank_origin VARCHAR,
    host_origin VARCHAR,
    attempt_origin VARCHAR
);
COMMENT ON TABLE proc IS 'One process of the job in one attempt';
COMMENT ON COLUMN proc.id IS 'Number of the process in this case';
COMMENT ON COLUMN proc.attempt IS 'Life of the job between (re)starts, from 0; part of every key';
COMMENT ON COLUMN proc.host IS 'Host name, when known';
COMMENT ON COLUMN proc.rank IS 'Global rank; NULL when unknown';
COMMENT ON COLUMN proc.local_rank IS 'Rank on its host; NULL when unknown';
COMMENT ON COLUMN proc.world_size IS 'Number of ranks, when known';
COMMENT ON COLUMN proc.pid IS 'Operating system process id; NULL when unknown';
COMMENT ON COLUMN proc.device IS 'Index of the device it mainly used; NULL when unknown';
COMMENT ON COLUMN proc.start_ns IS 'First time seen, ns since the epoch';
COMMENT ON COLUMN proc.end_ns IS 'Last time seen, ns since the epoch';
COMMENT ON COLUMN proc.exit_code IS 'Exit code, when recorded';
COMMENT ON COLUMN proc.signal IS 'Signal that ended it, when recorded';
COMMENT ON COLUMN proc.rank_origin IS 'Where the rank comes from: content | prefix (of log lines) | environment | file-name | folder | inferred (from the local rank) | none';
COMMENT ON COLUMN proc.local_rank_origin IS 'Where the local rank comes from, as for rank_origin; NULL when unknown';
COMMENT ON COLUMN proc.host_origin IS 'Where the host comes from, as for rank_origin; inferred: the job''s only host; NULL when unknown';
COMMENT ON COLUMN proc.attempt_origin IS 'Where the attempt comes from: content (a restart in the log) | file-name | folder | run (runs that lie beside each other, or a name that numbers runs, which may be trials side by side); NULL when nothing tells';

CREATE TABLE step (
    proc_id INTEGER NOT NULL,
    step BIGINT NOT NULL,
    start_ns BIGINT,
    end_ns BIGINT,
    origin VARCHAR NOT NULL
);
COMMENT ON TABLE step IS 'Optimizer or profiler steps of each process';
COMMENT ON COLUMN step.proc_id IS 'proc.id';
COMMENT ON COLUMN step.step IS 'Step number as the job counts it';
COMMENT ON COLUMN step.start_ns IS 'Start, ns since the epoch; NULL unknown';
COMMENT ON COLUMN step.end_ns IS 'End, ns since the epoch; NULL unknown';
COMMENT ON COLUMN step.origin IS 'profiler | annotation | metrics | log';

CREATE TABLE fact (
    artifact_id INTEGER NOT NULL,
    line BIGINT,
    proc_id INTEGER,
    scope VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    number DOUBLE
);
COMMENT ON TABLE fact IS 'Environment and settings: versions, variables, options, command lines';
COMMENT ON COLUMN fact.artifact_id IS 'artifact.id';
COMMENT ON COLUMN fact.proc_id IS 'proc.id; NULL for the job or host as a whole';
COMMENT ON COLUMN fact.line IS 'Line number from 1, when the artifact has lines';
COMMENT ON COLUMN fact.scope IS 'version | variable | option | command | device | host | distributed | profiler | allocator | outcome | note';
COMMENT ON COLUMN fact.key IS 'Name as written, package names in lower case with hyphens';
COMMENT ON COLUMN fact.value IS 'Value as written';
COMMENT ON COLUMN fact.number IS 'Value as a number, sizes in bytes, when it is one';

CREATE TABLE string (
    id UBIGINT PRIMARY KEY,
    text VARCHAR NOT NULL
);
COMMENT ON TABLE string IS 'Every text that *_id columns refer to; ids are derived from the text, so they agree between cases';
COMMENT ON COLUMN string.id IS 'Low 64 bits of the MD5 of the text (md5_number_lower)';
COMMENT ON COLUMN string.text IS 'The text';

CREATE TABLE stack (
    id UBIGINT PRIMARY KEY,
    parent_id UBIGINT,
    depth INTEGER NOT NULL,
    function_id UBIGINT NOT NULL,
    file_id UBIGINT,
    line INTEGER,
    user_stack_id UBIGINT
);
COMMENT ON TABLE stack IS 'Call stacks as a tree: a row is the innermost frame, parent_id its caller';
COMMENT ON COLUMN stack.id IS 'Derived from the frames, so that equal stacks of all artifacts are one row';
COMMENT ON COLUMN stack.parent_id IS 'stack.id of the caller; NULL at the outermost frame';
COMMENT ON COLUMN stack.depth IS 'Number of callers above';
COMMENT ON COLUMN stack.function_id IS 'string.id of the function name';
COMMENT ON COLUMN stack.file_id IS 'string.id of the file name; NULL unknown';
COMMENT ON COLUMN stack.line IS 'Source line; NULL unknown';
COMMENT ON COLUMN stack.user_stack_id IS 'stack.id of the innermost frame that is the job''s own code; NULL when there is none';

CREATE TABLE log_event (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    line BIGINT,
    byte BIGINT,
    source VARCHAR NOT NULL,
    level VARCHAR,
    signature VARCHAR,
    class VARCHAR,
    role VARCHAR NOT NULL,
    exception_id UBIGINT,
    message_id UBIGINT,
    stack_id UBIGINT,
    fields JSON
);
COMMENT ON TABLE log_event IS 'What logs say, one row per recognised event; a line that says several things gives several rows';
COMMENT ON COLUMN log_event.artifact_id IS 'artifact.id';
COMMENT ON COLUMN log_event.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN log_event.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN log_event.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN log_event.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN log_event.row IS 'Ordinal of the event in its artifact, from 0, in file order';
COMMENT ON COLUMN log_event.line IS 'Line number from 1 of the decisive line';
COMMENT ON COLUMN log_event.byte IS 'Byte offset of that line in the decompressed content';
COMMENT ON COLUMN log_event.source IS 'Writer: python, torch, nccl, gloo, torchrun, cuda, kernel, slurm, kubernetes, glibc, trainer, deepspeed, vllm, triton, job, …';
COMMENT ON COLUMN log_event.level IS 'debug | info | warning | error | fatal; NULL unknown';
COMMENT ON COLUMN log_event.signature IS 'Name of the catalogue entry; NULL for an exception or error line that none names';
COMMENT ON COLUMN log_event.class IS 'Class of the entry, dotted: mem.gpu.oom, capture.unsupported, comm.timeout, …';
COMMENT ON COLUMN log_event.role IS 'primary (can be a root) | symptom (waits for something) | secondary (follows something) | evidence | performance | noise';
COMMENT ON COLUMN log_event.exception_id IS 'string.id of the exception type, for events out of a traceback';
COMMENT ON COLUMN log_event.message_id IS 'string.id of the message text';
COMMENT ON COLUMN log_event.stack_id IS 'stack.id of the traceback''s innermost frame';
COMMENT ON COLUMN log_event.fields IS 'Values that the signature extracts; sizes as *_bytes in bytes, times as *_ms or *_ns. Of a traceback also code: the source line of its innermost frame, and user_code: that of the job''s own innermost one, where it is another';

CREATE TABLE sample (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    line BIGINT,
    source VARCHAR NOT NULL,
    name_id UBIGINT NOT NULL,
    entity_id UBIGINT,
    device INTEGER,
    unit VARCHAR,
    value DOUBLE NOT NULL
);
COMMENT ON TABLE sample IS 'Step metrics, host and GPU samples, counters and gauges, one value a row';
COMMENT ON COLUMN sample.artifact_id IS 'artifact.id';
COMMENT ON COLUMN sample.row IS 'Ordinal of the record in its artifact, from 0';
COMMENT ON COLUMN sample.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN sample.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN sample.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN sample.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN sample.line IS 'Line number from 1, when the artifact has lines';
COMMENT ON COLUMN sample.source IS 'metrics | log | trace | nvidia-smi | host | gauge';
COMMENT ON COLUMN sample.name_id IS 'string.id of the metric''s name; training names are normalised: loss, grad_norm, learning_rate, loss_scale, epoch';
COMMENT ON COLUMN sample.entity_id IS 'string.id of what was measured (a process, a parameter, a request), or of the words in front of it by which a log''s printer is known again; NULL for the job';
COMMENT ON COLUMN sample.device IS 'Device index; NULL when none';
COMMENT ON COLUMN sample.unit IS 'Unit of value; NULL for plain numbers';
COMMENT ON COLUMN sample.value IS 'The value; NaN and infinities are kept as such';

CREATE TABLE slice (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    kind VARCHAR NOT NULL,
    name_id UBIGINT NOT NULL,
    thread BIGINT,
    device INTEGER,
    stream BIGINT,
    dur_ns BIGINT,
    correlation UBIGINT,
    return_code INTEGER,
    bytes BIGINT,
    sequence BIGINT,
    parent_row BIGINT,
    launch_row BIGINT,
    forward_row BIGINT,
    graph_id BIGINT,
    request_id UBIGINT,
    shapes_id UBIGINT,
    stack_id UBIGINT
);
COMMENT ON TABLE slice IS 'Timed work out of traces: operators, kernels, copies, runtime calls, annotations, spans';
COMMENT ON COLUMN slice.artifact_id IS 'artifact.id';
COMMENT ON COLUMN slice.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN slice.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN slice.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN slice.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN slice.row IS 'Index of the event in its artifact (traceEvents[row] in a Kineto trace); Nsight Systems: number of the table times 2^40 plus the rowid';
COMMENT ON COLUMN slice.kind IS 'cpu_op | kernel | memcpy | memset | runtime | driver | annotation | gpu_annotation | python_function | sync | overhead | instant | span | graph (one launch of a CUDA graph whose kernels are not recorded: the device is busy) | graph_event | graph_node (a graph or node was made) | os_call | library_call | mpi | ucx, or the trace''s own category';
COMMENT ON COLUMN slice.name_id IS 'string.id of the name';
COMMENT ON COLUMN slice.thread IS 'Thread id of host work; NULL for device work';
COMMENT ON COLUMN slice.device IS 'Device index of device work';
COMMENT ON COLUMN slice.stream IS 'Stream of device work, and the stream that a sync waits for';
COMMENT ON COLUMN slice.dur_ns IS 'Duration, ns; NULL for an instant or unfinished work';
COMMENT ON COLUMN slice.correlation IS 'Links a runtime call to the device work it started';
COMMENT ON COLUMN slice.return_code IS 'CUDA result of a runtime call; NULL where the recorder does not keep it (Kineto never does)';
COMMENT ON COLUMN slice.bytes IS 'Bytes moved by a copy or fill';
COMMENT ON COLUMN slice.sequence IS 'Autograd sequence number';
COMMENT ON COLUMN slice.parent_row IS 'row of the enclosing slice on the same thread';
COMMENT ON COLUMN slice.launch_row IS 'row of the runtime call that started this device work';
COMMENT ON COLUMN slice.forward_row IS 'row of the forward operator of this backward operator';
COMMENT ON COLUMN slice.graph_id IS 'CUDA graph that launched it; NULL outside graphs';
COMMENT ON COLUMN slice.request_id IS 'string.id of the serving request or trace id';
COMMENT ON COLUMN slice.shapes_id IS 'string.id of the input shapes as JSON';
COMMENT ON COLUMN slice.stack_id IS 'stack.id';

CREATE TABLE span_detail (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    trace_key VARCHAR,
    span_key VARCHAR,
    parent_key VARCHAR,
    service VARCHAR,
    status VARCHAR,
    said VARCHAR,
    attributes JSON
);
COMMENT ON TABLE span_detail IS 'What a tracing span tells beside its slice (kind span, same artifact_id and row)';
COMMENT ON COLUMN span_detail.artifact_id IS 'artifact.id';
COMMENT ON COLUMN span_detail.row IS 'slice.row: ordinal of the span in its artifact, from 0';
COMMENT ON COLUMN span_detail.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN span_detail.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN span_detail.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN span_detail.ts_ns IS 'Start, ns since the epoch; NULL unknown';
COMMENT ON COLUMN span_detail.trace_key IS 'Trace id, 32 hexadecimal digits; spans of all services that worked on one request share it';
COMMENT ON COLUMN span_detail.span_key IS 'Span id, 16 hexadecimal digits';
COMMENT ON COLUMN span_detail.parent_key IS 'Span id of the parent, which another artifact may hold; NULL of a root';
COMMENT ON COLUMN span_detail.service IS 'service.name of its resource';
COMMENT ON COLUMN span_detail.status IS 'ok | error; NULL unset';
COMMENT ON COLUMN span_detail.said IS 'Message of the status, or the exception that an event of the span tells';
COMMENT ON COLUMN span_detail.attributes IS 'Attributes of the span by their names, numbers as numbers';

CREATE TABLE memory_event (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    device INTEGER,
    stream UBIGINT,
    pool_id VARCHAR,
    action VARCHAR NOT NULL,
    addr UBIGINT,
    size_bytes BIGINT,
    device_free_bytes BIGINT,
    category VARCHAR,
    metadata VARCHAR,
    compile_id VARCHAR,
    stack_id UBIGINT
);
COMMENT ON TABLE memory_event IS 'Allocator events in recorded order';
COMMENT ON COLUMN memory_event.artifact_id IS 'artifact.id';
COMMENT ON COLUMN memory_event.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN memory_event.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN memory_event.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN memory_event.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN memory_event.stack_id IS 'stack.id of the innermost frame; NULL when no stack was recorded';
COMMENT ON COLUMN memory_event.row IS 'Ordinal over all devices of the artifact, devices in order; Nsight Systems: as slice.row';
COMMENT ON COLUMN memory_event.device IS 'Device index; -1 for host memory';
COMMENT ON COLUMN memory_event.stream IS 'CUDA stream handle, 0 for the default stream';
COMMENT ON COLUMN memory_event.pool_id IS 'Memory pool as "a.b"; "0.0" is the default pool; NULL when not recorded';
COMMENT ON COLUMN memory_event.action IS 'alloc | free_requested | free_completed | segment_alloc | segment_free | segment_map | segment_unmap | snapshot | oom | annotate';
COMMENT ON COLUMN memory_event.addr IS 'Device address; NULL for oom';
COMMENT ON COLUMN memory_event.size_bytes IS 'Bytes requested (alloc, free), bytes of the segment, or bytes of the failed request (oom)';
COMMENT ON COLUMN memory_event.device_free_bytes IS 'oom only: bytes that the driver had free';
COMMENT ON COLUMN memory_event.category IS 'As memory_block.category; NULL unless a profiler wrote the snapshot';
COMMENT ON COLUMN memory_event.metadata IS 'Text that the job set for its allocations; NULL none';
COMMENT ON COLUMN memory_event.compile_id IS 'Compilation whose code ran, as in compile_event; NULL none';

CREATE TABLE memory_segment (
    artifact_id INTEGER NOT NULL,
    row BIGINT NOT NULL,
    proc_id INTEGER,
    device INTEGER NOT NULL,
    addr UBIGINT NOT NULL,
    total_bytes BIGINT NOT NULL,
    allocated_bytes BIGINT,
    active_bytes BIGINT,
    requested_bytes BIGINT,
    stream UBIGINT NOT NULL,
    pool_id VARCHAR NOT NULL,
    size_class VARCHAR NOT NULL,
    expandable BOOLEAN NOT NULL
);
COMMENT ON TABLE memory_segment IS 'Ranges that the allocator held when the snapshot was taken';
COMMENT ON COLUMN memory_segment.artifact_id IS 'artifact.id';
COMMENT ON COLUMN memory_segment.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN memory_segment.device IS 'Device index; -1 for host memory';
COMMENT ON COLUMN memory_segment.row IS 'Index of the segment in the snapshot';
COMMENT ON COLUMN memory_segment.addr IS 'First address';
COMMENT ON COLUMN memory_segment.total_bytes IS 'Bytes obtained from the driver';
COMMENT ON COLUMN memory_segment.allocated_bytes IS 'Bytes in blocks of state active_allocated';
COMMENT ON COLUMN memory_segment.active_bytes IS 'Allocated bytes plus bytes waiting for other streams';
COMMENT ON COLUMN memory_segment.requested_bytes IS 'Bytes asked for before rounding; NULL in old snapshots';
COMMENT ON COLUMN memory_segment.stream IS 'CUDA stream handle, 0 for the default stream';
COMMENT ON COLUMN memory_segment.pool_id IS 'Memory pool as "a.b"; "0.0" is the default pool';
COMMENT ON COLUMN memory_segment.size_class IS 'small (requests up to 1 MiB) | large';
COMMENT ON COLUMN memory_segment.expandable IS 'Grown by mapping (expandable_segments)';

CREATE TABLE memory_block (
    artifact_id INTEGER NOT NULL,
    row BIGINT NOT NULL,
    proc_id INTEGER,
    device INTEGER NOT NULL,
    segment_addr UBIGINT NOT NULL,
    addr UBIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    requested_bytes BIGINT,
    state VARCHAR NOT NULL,
    allocated_ns BIGINT,
    category VARCHAR,
    stack_id UBIGINT
);
COMMENT ON TABLE memory_block IS 'Blocks of those segments, by address';
COMMENT ON COLUMN memory_block.artifact_id IS 'artifact.id';
COMMENT ON COLUMN memory_block.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN memory_block.device IS 'Device index; -1 for host memory';
COMMENT ON COLUMN memory_block.addr IS 'First address of the block';
COMMENT ON COLUMN memory_block.stack_id IS 'stack.id of the innermost frame; NULL when no stack was recorded';
COMMENT ON COLUMN memory_block.row IS 'Ordinal of the block over all segments of the snapshot';
COMMENT ON COLUMN memory_block.segment_addr IS 'memory_segment.addr of the same device';
COMMENT ON COLUMN memory_block.size_bytes IS 'Bytes after rounding';
COMMENT ON COLUMN memory_block.requested_bytes IS 'Bytes asked for; NULL when not recorded';
COMMENT ON COLUMN memory_block.state IS 'active_allocated | active_pending_free | inactive';
COMMENT ON COLUMN memory_block.allocated_ns IS 'Time of the allocation that lives here, ns since the epoch, when the history holds it';
COMMENT ON COLUMN memory_block.category IS 'parameter | gradient | optimizer | activation | workspace | …; NULL unknown';

CREATE TABLE process_group (
    id INTEGER NOT NULL,
    artifact_id INTEGER NOT NULL,
    proc_id INTEGER, rank INTEGER,
    name_id UBIGINT NOT NULL,
    description VARCHAR,
    backend VARCHAR,
    ranks VARCHAR,
    last_enqueued BIGINT,
    last_started BIGINT,
    last_completed BIGINT
);
COMMENT ON TABLE process_group IS 'Process groups as one artifact knows them';
COMMENT ON COLUMN process_group.artifact_id IS 'artifact.id';
COMMENT ON COLUMN process_group.proc_id IS 'proc.id of the member that tells; NULL when no process is known';
COMMENT ON COLUMN process_group.rank IS 'Global rank of that member; NULL unknown';
COMMENT ON COLUMN process_group.name_id IS 'string.id of the group name';
COMMENT ON COLUMN process_group.description IS 'What the group is for, such as default_pg or mesh_tp; several groups may share it';
COMMENT ON COLUMN process_group.backend IS 'nccl | gloo | mpi | ucc | …; NULL unknown';
COMMENT ON COLUMN process_group.id IS 'Number of the group within its artifact';
COMMENT ON COLUMN process_group.ranks IS 'Global ranks of its members in runs: 0-7 or 0-56:8 (every eighth) or 3,5; NULL unknown';
COMMENT ON COLUMN process_group.last_enqueued IS 'Sequence number of the last operation this member called, point-to-point ones counted by their own numbers; NULL never or unknown';
COMMENT ON COLUMN process_group.last_started IS 'The same for the last operation seen to start; NULL never or not recorded';
COMMENT ON COLUMN process_group.last_completed IS 'The same for the last operation seen to complete; NULL never or unknown';

CREATE TABLE collective (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    group_id INTEGER,
    sequence BIGINT,
    p2p_sequence BIGINT,
    is_p2p BOOLEAN,
    peer_rank INTEGER,
    operation VARCHAR NOT NULL,
    dtype VARCHAR,
    in_bytes BIGINT,
    out_bytes BIGINT,
    shapes_id UBIGINT,
    state VARCHAR,
    retired BOOLEAN,
    started_ns BIGINT,
    completed_ns BIGINT,
    dur_ns BIGINT,
    timeout_ns BIGINT,
    thread VARCHAR,
    stack_id UBIGINT
);
COMMENT ON TABLE collective IS 'Collective and point-to-point operations as one rank saw them';
COMMENT ON COLUMN collective.artifact_id IS 'artifact.id';
COMMENT ON COLUMN collective.row IS 'Ordinal of the record in its artifact, from 0';
COMMENT ON COLUMN collective.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN collective.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN collective.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN collective.sequence IS 'Sequence number of collectives in the group; a point-to-point operation has that of the last collective';
COMMENT ON COLUMN collective.p2p_sequence IS 'Sequence number of point-to-point operations of this rank in the group; 0 for collectives';
COMMENT ON COLUMN collective.is_p2p IS 'Point-to-point; NULL unknown';
COMMENT ON COLUMN collective.peer_rank IS 'Global rank that a point-to-point operation sends to or receives from; NULL for collectives or unknown';
COMMENT ON COLUMN collective.operation IS 'all_reduce | all_gather | broadcast | send | …';
COMMENT ON COLUMN collective.dtype IS 'Element type of the inputs';
COMMENT ON COLUMN collective.in_bytes IS 'Bytes of the inputs';
COMMENT ON COLUMN collective.out_bytes IS 'Bytes of the outputs';
COMMENT ON COLUMN collective.shapes_id IS 'string.id of the shapes as JSON: [shapes of the inputs, shapes of the outputs]';
COMMENT ON COLUMN collective.started_ns IS 'Start on the device as the watchdog noticed it, ns since the epoch; NULL not started or unknown';
COMMENT ON COLUMN collective.completed_ns IS 'Completion as the watchdog noticed it, ns since the epoch; NULL not completed or unknown';
COMMENT ON COLUMN collective.dur_ns IS 'Duration on the device, ns; NULL when timing was off';
COMMENT ON COLUMN collective.timeout_ns IS 'Time after which the watchdog gives it up, ns; NULL unknown';
COMMENT ON COLUMN collective.thread IS 'Id and name of the thread that called';
COMMENT ON COLUMN collective.stack_id IS 'stack.id of the innermost frame; NULL when no stack was recorded';
COMMENT ON COLUMN collective.ts_ns IS 'Time of the call, ns since the epoch';
COMMENT ON COLUMN collective.group_id IS 'process_group.id of the same artifact';
COMMENT ON COLUMN collective.state IS 'scheduled | started | completed; gloo leaves it at scheduled';
COMMENT ON COLUMN collective.retired IS 'The watchdog no longer waits for it: it completed, failed or timed out; NULL unknown';

CREATE TABLE thread_state (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    thread VARCHAR,
    state VARCHAR,
    wait_kind VARCHAR,
    wait_on VARCHAR,
    stack_id UBIGINT
);
COMMENT ON TABLE thread_state IS 'Threads of a process at one moment, from py-spy, gdb, strace, faulthandler';
COMMENT ON COLUMN thread_state.artifact_id IS 'artifact.id';
COMMENT ON COLUMN thread_state.row IS 'Ordinal of the record in its artifact, from 0';
COMMENT ON COLUMN thread_state.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN thread_state.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN thread_state.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN thread_state.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN thread_state.thread IS 'Thread id and name; from faulthandler the pthread address';
COMMENT ON COLUMN thread_state.wait_on IS 'What it waits for: an identifier first where one is known (address, fd, pid), then words';
COMMENT ON COLUMN thread_state.stack_id IS 'stack.id of the innermost frame; NULL when no stack was recorded';
COMMENT ON COLUMN thread_state.state IS 'running | waiting | holding-gil | waiting-with-gil | stopped | crashed | killed | exited; NULL unknown';
COMMENT ON COLUMN thread_state.wait_kind IS 'futex | queue | collective | io | child | device';

CREATE TABLE node (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    graph_id BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    phase VARCHAR NOT NULL,
    op_id UBIGINT,
    module_id UBIGINT,
    autograd_id UBIGINT,
    sequence BIGINT,
    thread BIGINT,
    stack_id UBIGINT
);
COMMENT ON TABLE node IS 'Operators of recorded autograd and execution graphs';
COMMENT ON COLUMN node.artifact_id IS 'artifact.id';
COMMENT ON COLUMN node.row IS 'Ordinal of the record in its artifact, from 0';
COMMENT ON COLUMN node.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN node.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN node.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN node.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN node.graph_id IS 'Graph within the artifact; the step number where a step has one graph';
COMMENT ON COLUMN node.node_id IS 'Number of the node in its graph, in the order of execution where one was recorded';
COMMENT ON COLUMN node.sequence IS 'Autograd sequence number';
COMMENT ON COLUMN node.thread IS 'Number of the thread as the recorder counts; NULL unknown';
COMMENT ON COLUMN node.stack_id IS 'stack.id of the innermost frame; NULL when no stack was recorded';
COMMENT ON COLUMN node.phase IS 'forward | backward | optimizer';
COMMENT ON COLUMN node.op_id IS 'string.id of the operator; NULL for parameters and other tensors without one';
COMMENT ON COLUMN node.module_id IS 'string.id of the module path';
COMMENT ON COLUMN node.autograd_id IS 'string.id of the autograd node that ran a backward operator; NULL unknown';

CREATE TABLE edge (
    artifact_id INTEGER NOT NULL,
    graph_id BIGINT NOT NULL,
    from_node BIGINT NOT NULL,
    to_node BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    tensor_row BIGINT
);
COMMENT ON TABLE edge IS 'How nodes of one graph depend on each other';
COMMENT ON COLUMN edge.kind IS 'data (a tensor flows) | control (one calls the other)';
COMMENT ON COLUMN edge.artifact_id IS 'artifact.id';
COMMENT ON COLUMN edge.graph_id IS 'node.graph_id';
COMMENT ON COLUMN edge.from_node IS 'node.node_id that produces, or calls';
COMMENT ON COLUMN edge.to_node IS 'node.node_id that consumes, or is called';
COMMENT ON COLUMN edge.tensor_row IS 'tensor.row that flows; NULL unknown';

CREATE TABLE tensor (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    role VARCHAR NOT NULL,
    name_id UBIGINT,
    node_id BIGINT,
    dtype VARCHAR,
    shape_id UBIGINT,
    device INTEGER,
    addr UBIGINT,
    pool_id VARCHAR,
    tensor_id BIGINT,
    storage_id BIGINT,
    size_bytes BIGINT,
    version BIGINT,
    n_nan BIGINT,
    n_inf BIGINT,
    absmax DOUBLE,
    norm DOUBLE,
    std DOUBLE,
    zero_ratio DOUBLE,
    subnormal_ratio DOUBLE,
    checksum UBIGINT
);
COMMENT ON TABLE tensor IS 'Tensors of runs, checkpoints and adapters, with their statistics where these were recorded';
COMMENT ON COLUMN tensor.artifact_id IS 'artifact.id';
COMMENT ON COLUMN tensor.row IS 'Ordinal of the record in its artifact, from 0';
COMMENT ON COLUMN tensor.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN tensor.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN tensor.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN tensor.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN tensor.dtype IS 'Element type';
COMMENT ON COLUMN tensor.shape_id IS 'string.id of the shape as JSON';
COMMENT ON COLUMN tensor.device IS 'Device index; NULL for the CPU or unknown';
COMMENT ON COLUMN tensor.addr IS 'Address of its data';
COMMENT ON COLUMN tensor.pool_id IS 'Memory pool as "a.b"';
COMMENT ON COLUMN tensor.tensor_id IS 'Number of the tensor in its graph; each view has its own';
COMMENT ON COLUMN tensor.storage_id IS 'Number of its storage in its graph, which views share';
COMMENT ON COLUMN tensor.size_bytes IS 'Bytes of its elements';
COMMENT ON COLUMN tensor.version IS 'Autograd version counter';
COMMENT ON COLUMN tensor.n_nan IS 'Number of NaN elements';
COMMENT ON COLUMN tensor.n_inf IS 'Number of infinite elements';
COMMENT ON COLUMN tensor.norm IS 'Euclidean norm of the finite elements';
COMMENT ON COLUMN tensor.std IS 'Standard deviation of the finite elements';
COMMENT ON COLUMN tensor.zero_ratio IS 'Share of elements that are zero';
COMMENT ON COLUMN tensor.subnormal_ratio IS 'Share of elements of float16 that are not zero and below 2^-14, its smallest normal number; NULL for other types';
COMMENT ON COLUMN tensor.role IS 'input | output | parameter | gradient | missing-gradient | captured-gradient (its address when the capture of a CUDA graph ended) | bucket (a gradient before it is reduced over the ranks) | reduced-bucket (one that was finite before and is not after) | placement (where a tensor lies) | buffer | attribute (held by a module, not registered) | optimizer | saved (for backward) | checkpoint | adapter';
COMMENT ON COLUMN tensor.name_id IS 'string.id of the parameter, module or checkpoint key';
COMMENT ON COLUMN tensor.node_id IS 'node.node_id that has it as input or output';
COMMENT ON COLUMN tensor.absmax IS 'Largest finite absolute value';
COMMENT ON COLUMN tensor.checksum IS 'Content checksum; equal content, equal value';

CREATE TABLE checkpoint (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    n_tensors BIGINT NOT NULL,
    n_said BIGINT,
    size_bytes BIGINT NOT NULL,
    n_lost BIGINT NOT NULL,
    n_adapter_modules BIGINT NOT NULL,
    step BIGINT,
    damage VARCHAR,
    damage_text VARCHAR,
    bad_byte BIGINT,
    settings JSON
);
COMMENT ON TABLE checkpoint IS 'Files of checkpoints and adapters: weights, shards, indices, configurations of adapters';
COMMENT ON COLUMN checkpoint.artifact_id IS 'artifact.id';
COMMENT ON COLUMN checkpoint.row IS 'Always 0: one row an artifact';
COMMENT ON COLUMN checkpoint.kind IS 'safetensors | torch-zip | torch-legacy | torchscript | gguf | index (of shards) | distributed-shard | distributed-index (.metadata of torch.distributed.checkpoint) | adapter-config';
COMMENT ON COLUMN checkpoint.n_tensors IS 'Tensors that it names, those of an optimizer included';
COMMENT ON COLUMN checkpoint.n_said IS 'Tensors that it announces, where it does';
COMMENT ON COLUMN checkpoint.size_bytes IS 'Bytes of all its tensors';
COMMENT ON COLUMN checkpoint.n_lost IS 'Tensors whose values cannot be had as they were saved';
COMMENT ON COLUMN checkpoint.n_adapter_modules IS 'Rows of adapter_module';
COMMENT ON COLUMN checkpoint.step IS 'Step at which it was saved, as the content or else the file''s own name tells; checkpoint_file looks at folders as well';
COMMENT ON COLUMN checkpoint.damage IS 'What is wrong with the file, the first: truncated | no-directory | bad-header | bad-pickle | wrong-checksum | overlap | gap | trailing, or checkpoint_tensor.fault; NULL whole';
COMMENT ON COLUMN checkpoint.damage_text IS 'The same as a sentence';
COMMENT ON COLUMN checkpoint.bad_byte IS 'Where, as a byte offset in the decompressed file';
COMMENT ON COLUMN checkpoint.settings IS 'Numbers and texts beside the tensors, by path: metadata, step, learning rate, settings of an adapter';

CREATE TABLE checkpoint_tensor (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL,
    name_id UBIGINT NOT NULL,
    dtype VARCHAR,
    shape_id UBIGINT,
    device VARCHAR,
    storage VARCHAR,
    fault VARCHAR,
    file VARCHAR,
    byte BIGINT,
    size_bytes BIGINT,
    n_elements BIGINT,
    n_read BIGINT,
    n_nan BIGINT,
    n_inf BIGINT,
    n_zero BIGINT,
    absmax DOUBLE,
    norm DOUBLE,
    checksum UBIGINT,
    picked DOUBLE[]
);
COMMENT ON TABLE checkpoint_tensor IS 'Tensors of checkpoints and adapters, with where they lie and statistics of the values that were read; `stored_tensor` has the names';
COMMENT ON COLUMN checkpoint_tensor.artifact_id IS 'artifact.id';
COMMENT ON COLUMN checkpoint_tensor.row IS 'Ordinal of the tensor in its file, from 0';
COMMENT ON COLUMN checkpoint_tensor.name_id IS 'string.id of its key, with the keys of the dicts around it';
COMMENT ON COLUMN checkpoint_tensor.dtype IS 'Element type as torch names it; of GGUF its own; empty in an index';
COMMENT ON COLUMN checkpoint_tensor.shape_id IS 'string.id of the shape as JSON';
COMMENT ON COLUMN checkpoint_tensor.device IS 'Device that it was saved from, as torch names it; meta: it has no data; NULL where the format does not tell';
COMMENT ON COLUMN checkpoint_tensor.storage IS 'Key of its storage in the file, which views share';
COMMENT ON COLUMN checkpoint_tensor.fault IS 'outside (of the file or its storage) | no-data | cut | wrong-size | overlapping | wrong-checksum; NULL whole';
COMMENT ON COLUMN checkpoint_tensor.file IS 'Of an index: name of the file that is to hold it';
COMMENT ON COLUMN checkpoint_tensor.byte IS 'Offset of its first element in the decompressed file; NULL without data';
COMMENT ON COLUMN checkpoint_tensor.size_bytes IS 'From there to its last byte';
COMMENT ON COLUMN checkpoint_tensor.n_elements IS 'Number of its elements';
COMMENT ON COLUMN checkpoint_tensor.n_read IS 'Elements that the statistics are of: all, a sample, or 0';
COMMENT ON COLUMN checkpoint_tensor.n_nan IS 'NaN among them; NULL when none was read';
COMMENT ON COLUMN checkpoint_tensor.n_inf IS 'Infinities among them';
COMMENT ON COLUMN checkpoint_tensor.n_zero IS 'Zeros among them';
COMMENT ON COLUMN checkpoint_tensor.absmax IS 'Largest finite absolute value among them';
COMMENT ON COLUMN checkpoint_tensor.norm IS 'Euclidean norm of the finite elements; NULL unless all were read';
COMMENT ON COLUMN checkpoint_tensor.checksum IS 'Of all values in the order of the last index; equal values, equal checksum; NULL unless all were read';
COMMENT ON COLUMN checkpoint_tensor.picked IS 'Values of up to 64 elements that lie evenly over it, at the same places in every tensor of as many elements, so that two states can be held against each other; NULL unless all were read';

CREATE TABLE adapter_module (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL,
    name_id UBIGINT NOT NULL,
    adapter VARCHAR,
    lora_rank INTEGER,
    n_inputs BIGINT,
    n_outputs BIGINT,
    alpha DOUBLE,
    a_row BIGINT,
    b_row BIGINT,
    delta_norm DOUBLE
);
COMMENT ON TABLE adapter_module IS 'Modules that a low-rank adapter in a checkpoint adapts: weight + scale * B @ A';
COMMENT ON COLUMN adapter_module.artifact_id IS 'artifact.id';
COMMENT ON COLUMN adapter_module.row IS 'Ordinal in its file, from 0';
COMMENT ON COLUMN adapter_module.name_id IS 'string.id of the module''s name, without what wrappers put before it';
COMMENT ON COLUMN adapter_module.adapter IS 'Name of the adapter as the keys tell it; NULL where they do not';
COMMENT ON COLUMN adapter_module.lora_rank IS 'Rows of A; NULL when a factor is missing';
COMMENT ON COLUMN adapter_module.n_inputs IS 'Columns of A';
COMMENT ON COLUMN adapter_module.n_outputs IS 'Rows of B';
COMMENT ON COLUMN adapter_module.alpha IS 'Scale times rank, where it is stored beside the factors';
COMMENT ON COLUMN adapter_module.a_row IS 'checkpoint_tensor.row of A; NULL missing';
COMMENT ON COLUMN adapter_module.b_row IS 'checkpoint_tensor.row of B; NULL missing';
COMMENT ON COLUMN adapter_module.delta_norm IS 'Frobenius norm of B @ A, without the scale; NULL when not computed or not finite';

CREATE TABLE placement (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER,
    name_id UBIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    declared VARCHAR,
    is_as_declared BOOLEAN,
    size_bytes BIGINT
);
COMMENT ON TABLE placement IS 'Where the tensors of a model lay, against where a device map wanted them, in the order of the modules';
COMMENT ON COLUMN placement.artifact_id IS 'artifact.id';
COMMENT ON COLUMN placement.row IS 'Ordinal of the tensor in the map, from 0: the order in which modules were made, mostly that of the forward';
COMMENT ON COLUMN placement.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN placement.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN placement.name_id IS 'string.id of the tensor''s name, with the path of its module';
COMMENT ON COLUMN placement.kind IS 'parameter | buffer | attribute (held by a module, not registered)';
COMMENT ON COLUMN placement.device IS 'Where it lay, as torch names it: cuda:0, cpu, meta (no data)';
COMMENT ON COLUMN placement.declared IS 'Where the map wanted it; NULL where it has no entry';
COMMENT ON COLUMN placement.is_as_declared IS 'Whether the two are one place: 0, cuda and cuda:0 are; NULL where nothing was declared';
COMMENT ON COLUMN placement.size_bytes IS 'Bytes of its elements; NULL unknown';

CREATE TABLE reference_link (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER,
    tensor BIGINT NOT NULL,
    place BIGINT NOT NULL,
    holder_id UBIGINT NOT NULL,
    size_bytes BIGINT,
    shape_id UBIGINT,
    dtype VARCHAR,
    device VARCHAR
);
COMMENT ON TABLE reference_link IS 'Who keeps the largest tensors of a process alive: the objects from each tensor outwards to a variable, module or class';
COMMENT ON COLUMN reference_link.artifact_id IS 'artifact.id';
COMMENT ON COLUMN reference_link.row IS 'Ordinal of the object among those of all chains, from 0';
COMMENT ON COLUMN reference_link.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN reference_link.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN reference_link.tensor IS 'Ordinal of the tensor, from 0: the largest first';
COMMENT ON COLUMN reference_link.place IS 'Place in its chain, from 0: what holds the tensor itself';
COMMENT ON COLUMN reference_link.holder_id IS 'string.id of what holds it, and where in it: list[3] of 36, attribute scores of module.Class, variable of a function';
COMMENT ON COLUMN reference_link.size_bytes IS 'Bytes of the tensor''s storage; NULL unknown';
COMMENT ON COLUMN reference_link.shape_id IS 'string.id of its shape, a JSON list; NULL unknown';
COMMENT ON COLUMN reference_link.dtype IS 'Its type of elements; NULL unknown';
COMMENT ON COLUMN reference_link.device IS 'Where it lay, as torch names it; NULL unknown';

CREATE TABLE compile_event (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    compile_id VARCHAR,
    kind VARCHAR NOT NULL,
    name_id UBIGINT,
    reason_id UBIGINT,
    dur_ns BIGINT,
    stack_id UBIGINT
);
COMMENT ON TABLE compile_event IS 'torch.compile events: compilations, recompiles, graph breaks, skips';
COMMENT ON COLUMN compile_event.artifact_id IS 'artifact.id';
COMMENT ON COLUMN compile_event.row IS 'Ordinal of the record in its artifact, from 0';
COMMENT ON COLUMN compile_event.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN compile_event.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN compile_event.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN compile_event.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN compile_event.kind IS 'compile | compile-backward | unfinished (began, its end is not on record) | failure | limit (too many recompilations) | recompile (why) | restart | graph-break | skip (CUDA graph) | cache-miss | cache-bypass | guards (all of one compilation) | guard | specialization | fake-kernel';
COMMENT ON COLUMN compile_event.name_id IS 'string.id of the function compiled, or broken';
COMMENT ON COLUMN compile_event.reason_id IS 'string.id of the reason or failed guard';
COMMENT ON COLUMN compile_event.dur_ns IS 'Duration, ns; NULL unknown';
COMMENT ON COLUMN compile_event.stack_id IS 'stack.id of the innermost frame; NULL when no stack was recorded';
COMMENT ON COLUMN compile_event.compile_id IS 'frame/compile id such as 0/1, with its restart 0/1_1, of compiled autograd !0/1/0';

CREATE TABLE position (
    artifact_id INTEGER NOT NULL,
    "table" VARCHAR NOT NULL,
    row BIGINT NOT NULL,
    byte BIGINT,
    line BIGINT
);
COMMENT ON TABLE position IS 'Known places of event rows in their artifacts; sparse: the nearest smaller row gives where to start looking';
COMMENT ON COLUMN position.artifact_id IS 'artifact.id';
COMMENT ON COLUMN position.row IS 'Row of that table';
COMMENT ON COLUMN position."table" IS 'Event table whose row this is';
COMMENT ON COLUMN position.byte IS 'Byte offset in the decompressed content';
COMMENT ON COLUMN position.line IS 'Line number from 1';

CREATE TABLE interval (
    kind VARCHAR NOT NULL,
    proc_id INTEGER,
    from_ns BIGINT,
    to_ns BIGINT,
    cause_artifact_id INTEGER,
    cause_row BIGINT,
    detail VARCHAR
);
COMMENT ON TABLE interval IS 'Derived: captures, waits, gaps';
COMMENT ON COLUMN interval.proc_id IS 'proc.id';
COMMENT ON COLUMN interval.from_ns IS 'Start, ns since the epoch';
COMMENT ON COLUMN interval.to_ns IS 'End, ns since the epoch; NULL open';
COMMENT ON COLUMN interval.cause_artifact_id IS 'artifact.id of the row that opened or broke it';
COMMENT ON COLUMN interval.detail IS 'What it is, in words';
COMMENT ON COLUMN interval.kind IS 'capture | wait | gap';
COMMENT ON COLUMN interval.cause_row IS 'slice.row that opened or broke it';

CREATE TABLE capture_window (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    thread BIGINT,
    to_ns BIGINT,
    end_row BIGINT,
    end_code INTEGER,
    became_graph BOOLEAN NOT NULL
);
COMMENT ON TABLE capture_window IS 'CUDA graph captures in traces: one row for each begin of a capture that was accepted';
COMMENT ON COLUMN capture_window.artifact_id IS 'artifact.id';
COMMENT ON COLUMN capture_window.row IS 'slice.row of the call that begins the capture';
COMMENT ON COLUMN capture_window.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN capture_window.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN capture_window.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN capture_window.ts_ns IS 'Begin, ns since the epoch';
COMMENT ON COLUMN capture_window.thread IS 'Thread that captures';
COMMENT ON COLUMN capture_window.to_ns IS 'Call that ends the capture, ns since the epoch; NULL when none was recorded';
COMMENT ON COLUMN capture_window.end_row IS 'slice.row of that call';
COMMENT ON COLUMN capture_window.end_code IS 'CUDA result of that call; NULL where the recorder does not keep it';
COMMENT ON COLUMN capture_window.became_graph IS 'Whether it ended well: by its result, or where results are not recorded, by a graph made before the next capture';

CREATE TABLE capture_offence (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    told_by VARCHAR NOT NULL,
    mechanism VARCHAR,
    offence VARCHAR,
    fix VARCHAR,
    tells VARCHAR,
    call VARCHAR,
    return_code INTEGER,
    window_row BIGINT,
    other_thread BOOLEAN NOT NULL,
    place VARCHAR
);
COMMENT ON TABLE capture_offence IS 'What broke a CUDA graph capture first, by each kind of evidence';
COMMENT ON COLUMN capture_offence.artifact_id IS 'artifact.id';
COMMENT ON COLUMN capture_offence.row IS 'row of the call in slice, or of the error in log_event';
COMMENT ON COLUMN capture_offence.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN capture_offence.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN capture_offence.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN capture_offence.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN capture_offence.told_by IS 'result (of a CUDA call) | call (that captures forbid, its result not recorded) | log';
COMMENT ON COLUMN capture_offence.mechanism IS 'Name in models/capture_mechanisms.toml; NULL: none told apart';
COMMENT ON COLUMN capture_offence.offence IS 'The mechanism in words';
COMMENT ON COLUMN capture_offence.fix IS 'Smallest change that mends it';
COMMENT ON COLUMN capture_offence.tells IS 'Why this mechanism and no other';
COMMENT ON COLUMN capture_offence.call IS 'Runtime or driver call; NULL in logs';
COMMENT ON COLUMN capture_offence.return_code IS 'CUDA result of the call; NULL unknown';
COMMENT ON COLUMN capture_offence.window_row IS 'capture_window.row of the capture that it broke; NULL when that was not recorded';
COMMENT ON COLUMN capture_offence.other_thread IS 'Whether the call came from another thread than the one that captures';
COMMENT ON COLUMN capture_offence.place IS 'Operators and ranges around the call, outermost first';

CREATE TABLE allocator_replay (
    artifact_id INTEGER NOT NULL, proc_id INTEGER, rank INTEGER,
    device INTEGER NOT NULL,
    accepted BOOLEAN NOT NULL,
    reason VARCHAR NOT NULL,
    setting VARCHAR NOT NULL,
    complete BOOLEAN NOT NULL,
    n_events BIGINT NOT NULL,
    n_allocations BIGINT NOT NULL,
    at_address_ratio DOUBLE,
    reserved_error_ratio DOUBLE,
    peak_reserved_bytes BIGINT,
    room_low_bytes BIGINT,
    room_high_bytes BIGINT
);
COMMENT ON TABLE allocator_replay IS 'Derived: how well the model of the caching allocator reproduces the recorded history of a device';
COMMENT ON COLUMN allocator_replay.artifact_id IS 'artifact.id of the snapshot';
COMMENT ON COLUMN allocator_replay.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN allocator_replay.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN allocator_replay.device IS 'Device index';
COMMENT ON COLUMN allocator_replay.accepted IS 'The model reproduces the record: nothing is predicted where it does not';
COMMENT ON COLUMN allocator_replay.reason IS 'Why it is not accepted; empty when it is';
COMMENT ON COLUMN allocator_replay.setting IS 'PYTORCH_CUDA_ALLOC_CONF of the record, as written';
COMMENT ON COLUMN allocator_replay.complete IS 'The history reaches back to the first allocation; else it is rewound from the segments of its end';
COMMENT ON COLUMN allocator_replay.n_events IS 'Events of the device that were replayed';
COMMENT ON COLUMN allocator_replay.n_allocations IS 'Allocations among them';
COMMENT ON COLUMN allocator_replay.at_address_ratio IS 'Share of them that the model puts at the recorded address; NULL when it was not run';
COMMENT ON COLUMN allocator_replay.reserved_error_ratio IS 'Difference of reserved bytes at the peak or the end, whichever is larger, by the recorded peak';
COMMENT ON COLUMN allocator_replay.peak_reserved_bytes IS 'Most bytes that the record has reserved';
COMMENT ON COLUMN allocator_replay.room_low_bytes IS 'Least bytes that the process could get of the device, as the record shows';
COMMENT ON COLUMN allocator_replay.room_high_bytes IS 'Most bytes that it could get; NULL when nothing was ever refused, so not known';

CREATE TABLE replay (
    artifact_id INTEGER NOT NULL, row BIGINT, proc_id INTEGER, rank INTEGER,
    device INTEGER NOT NULL,
    setting VARCHAR NOT NULL,
    recorded BOOLEAN NOT NULL,
    peak_reserved_bytes BIGINT NOT NULL,
    fits BOOLEAN,
    spare_bytes BIGINT,
    assumes VARCHAR NOT NULL,
    deviation_ratio DOUBLE NOT NULL
);
COMMENT ON TABLE replay IS 'Derived: what the allocator would have done under other settings, where the model reproduces the record';
COMMENT ON COLUMN replay.artifact_id IS 'artifact.id of the snapshot';
COMMENT ON COLUMN replay.row IS 'memory_event.row of the first request that could not be served; NULL when all are, or it came before the history';
COMMENT ON COLUMN replay.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN replay.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN replay.device IS 'Device index';
COMMENT ON COLUMN replay.setting IS 'PYTORCH_CUDA_ALLOC_CONF that was tried; empty for the defaults';
COMMENT ON COLUMN replay.recorded IS 'The setting of the record itself: shows how well the model does';
COMMENT ON COLUMN replay.peak_reserved_bytes IS 'Peak of reserved bytes under it, up to the first request of the record that it could not have served';
COMMENT ON COLUMN replay.fits IS 'Whether all requests would have been served, those that failed among them; NULL not known, since the room is not';
COMMENT ON COLUMN replay.spare_bytes IS 'Bytes that could still be had when the failed request was served (at the end when none failed); negative: bytes that lacked; NULL unknown';
COMMENT ON COLUMN replay.assumes IS 'What the prediction rests on beside the record; empty when on nothing';
COMMENT ON COLUMN replay.deviation_ratio IS 'allocator_replay.reserved_error_ratio';

CREATE TABLE allocator_pin (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, device INTEGER NOT NULL,
    event_row BIGINT,
    site_rank INTEGER NOT NULL,
    place VARCHAR,
    unlocked_bytes BIGINT NOT NULL,
    held_bytes BIGINT NOT NULL,
    n_blocks BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    joined_bytes BIGINT NOT NULL,
    empties_segment BOOLEAN NOT NULL,
    allocated_ns BIGINT
);
COMMENT ON TABLE allocator_pin IS 'Derived: live blocks that keep free memory apart which the last failed request could have used';
COMMENT ON COLUMN allocator_pin.artifact_id IS 'artifact.id of the snapshot';
COMMENT ON COLUMN allocator_pin.row IS 'memory_block.row';
COMMENT ON COLUMN allocator_pin.device IS 'Device index';
COMMENT ON COLUMN allocator_pin.event_row IS 'memory_event.row of that failure; NULL without one: then for the largest free run of the large pool';
COMMENT ON COLUMN allocator_pin.site_rank IS 'Rank of the line that allocated it, from 1, by what freeing all of its blocks unlocks against what they hold';
COMMENT ON COLUMN allocator_pin.place IS 'That line, as FUNCTION (FILE:LINE); NULL without stacks';
COMMENT ON COLUMN allocator_pin.unlocked_bytes IS 'Free bytes that become usable, by the request or by the device, when all blocks of the line are freed';
COMMENT ON COLUMN allocator_pin.held_bytes IS 'Bytes of those blocks themselves';
COMMENT ON COLUMN allocator_pin.n_blocks IS 'Number of those blocks';
COMMENT ON COLUMN allocator_pin.size_bytes IS 'Size of this block';
COMMENT ON COLUMN allocator_pin.joined_bytes IS 'Free bytes that touch it, which freeing it alone would make one run';
COMMENT ON COLUMN allocator_pin.empties_segment IS 'It is the only live block of its segment';
COMMENT ON COLUMN allocator_pin.allocated_ns IS 'memory_block.allocated_ns';

CREATE TABLE birth (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    graph_id BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    ordinal INTEGER NOT NULL,
    kind VARCHAR NOT NULL,
    phase VARCHAR NOT NULL,
    op_id UBIGINT,
    autograd_id UBIGINT,
    module_id UBIGINT,
    stack_id UBIGINT,
    tensor_name_id UBIGINT,
    cause VARCHAR NOT NULL,
    why VARCHAR NOT NULL,
    n_nan BIGINT NOT NULL,
    n_inf BIGINT NOT NULL,
    dtype VARCHAR,
    input_absmax DOUBLE,
    is_harmful BOOLEAN NOT NULL,
    reaches_loss BOOLEAN NOT NULL,
    first_parameter_id UBIGINT,
    n_parameters INTEGER NOT NULL,
    n_reached INTEGER NOT NULL
);
COMMENT ON TABLE birth IS 'Derived: where non-finite values came into recorded steps, first by first';
COMMENT ON COLUMN birth.artifact_id IS 'artifact.id';
COMMENT ON COLUMN birth.row IS 'tensor.row of the first non-finite tensor';
COMMENT ON COLUMN birth.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN birth.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN birth.step IS 'Step that was recorded, as the job counts it; NULL unknown';
COMMENT ON COLUMN birth.ts_ns IS 'Time of the operator, ns since the epoch; NULL unknown';
COMMENT ON COLUMN birth.graph_id IS 'node.graph_id';
COMMENT ON COLUMN birth.node_id IS 'node.node_id of the operator that gave it, or first read it';
COMMENT ON COLUMN birth.ordinal IS 'Place among the births of this process, from 0: harmful ones first, then by step and order';
COMMENT ON COLUMN birth.kind IS 'operator (its operands were finite, or masks) | data (came from outside of the recorded operators) | parameter (a parameter was so when the step began) | unrecorded (the first place on record: what wrote or gave it is missing)';
COMMENT ON COLUMN birth.phase IS 'forward | backward | optimizer (between this step''s parameters and the finite gradients before)';
COMMENT ON COLUMN birth.op_id IS 'string.id of the operator';
COMMENT ON COLUMN birth.autograd_id IS 'string.id of the autograd node of a backward operator; NULL in the forward';
COMMENT ON COLUMN birth.module_id IS 'string.id of the module path; NULL unknown';
COMMENT ON COLUMN birth.stack_id IS 'stack.id of the forward call; of a backward operator, of the forward operator that it belongs to';
COMMENT ON COLUMN birth.tensor_name_id IS 'string.id of the parameter, of kind parameter';
COMMENT ON COLUMN birth.cause IS 'Class of the cause: overflow | log-of-zero | zero-over-zero | …, unexplained where the operands tell nothing';
COMMENT ON COLUMN birth.why IS 'The same as a clause';
COMMENT ON COLUMN birth.n_nan IS 'NaN elements of what it gave';
COMMENT ON COLUMN birth.n_inf IS 'Infinite elements of what it gave';
COMMENT ON COLUMN birth.dtype IS 'Element type of what it gave';
COMMENT ON COLUMN birth.input_absmax IS 'Largest finite absolute value among its operands; NULL unknown';
COMMENT ON COLUMN birth.is_harmful IS 'It reached the loss, or the gradient of a parameter';
COMMENT ON COLUMN birth.reaches_loss IS 'It reached an operator of the forward that gives one number which no other one reads';
COMMENT ON COLUMN birth.first_parameter_id IS 'string.id of the parameter whose gradient it reached first; NULL none, or unknown';
COMMENT ON COLUMN birth.n_parameters IS 'Number of parameters whose gradients it reached';
COMMENT ON COLUMN birth.n_reached IS 'Number of operators that gave non-finite values because of it, itself included';

CREATE TABLE spread (
    artifact_id INTEGER NOT NULL,
    graph_id BIGINT NOT NULL,
    birth_node BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    distance INTEGER NOT NULL,
    is_on_path BOOLEAN NOT NULL
);
COMMENT ON TABLE spread IS 'Derived: what each birth reached';
COMMENT ON COLUMN spread.artifact_id IS 'artifact.id';
COMMENT ON COLUMN spread.graph_id IS 'node.graph_id';
COMMENT ON COLUMN spread.birth_node IS 'birth.node_id';
COMMENT ON COLUMN spread.node_id IS 'node.node_id that has non-finite values because of it';
COMMENT ON COLUMN spread.distance IS 'Number of operators on the shortest way from the birth';
COMMENT ON COLUMN spread.is_on_path IS 'Lies on the shortest way to the loss, or to the first parameter where the loss is finite';

CREATE TABLE suspect (
    proc_id INTEGER,
    function_id UBIGINT NOT NULL,
    source VARCHAR NOT NULL,
    artifact_id INTEGER NOT NULL,
    row BIGINT NOT NULL,
    step BIGINT,
    n_candidates INTEGER NOT NULL,
    forward_op_id UBIGINT,
    stack_id UBIGINT,
    n_parameters INTEGER,
    first_parameter_id UBIGINT,
    infinite_id UBIGINT
);
COMMENT ON TABLE suspect IS 'Derived: where the backward function that anomaly mode named stands in a graph without values. One candidate is that function; of several, any';
COMMENT ON COLUMN suspect.proc_id IS 'proc.id of the process whose log names it';
COMMENT ON COLUMN suspect.function_id IS 'string.id of the backward function, as LogBackward0';
COMMENT ON COLUMN suspect.source IS 'trace (a profiler''s) | execution (an execution trace) | graph (DOT, without an order of execution)';
COMMENT ON COLUMN suspect.artifact_id IS 'artifact.id of the trace or graph';
COMMENT ON COLUMN suspect.row IS 'slice.row of the backward slice, or node.row of the box, that runs first';
COMMENT ON COLUMN suspect.step IS 'Step of the trace, the last that has it; NULL unknown';
COMMENT ON COLUMN suspect.n_candidates IS 'How often that function stands in that step or graph; of an execution trace in all of it';
COMMENT ON COLUMN suspect.forward_op_id IS 'string.id of its forward operator, by the sequence number; NULL unknown';
COMMENT ON COLUMN suspect.stack_id IS 'stack.id of that forward operator; NULL when no stack was recorded';
COMMENT ON COLUMN suspect.n_parameters IS 'Number of parameters whose gradients come through it; NULL unknown';
COMMENT ON COLUMN suspect.first_parameter_id IS 'string.id of the nearest of them; NULL unknown';
COMMENT ON COLUMN suspect.infinite_id IS 'string.id of the nearest function that runs before it in a DOT graph and whose derivative can be infinite; NULL none known';

CREATE TABLE memory_moment (
    artifact_id INTEGER NOT NULL, row BIGINT, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    device INTEGER NOT NULL,
    moment VARCHAR NOT NULL,
    live_bytes BIGINT NOT NULL,
    awaiting_bytes BIGINT NOT NULL,
    reserved_bytes BIGINT NOT NULL,
    needed_bytes BIGINT,
    n_needed_turns INTEGER,
    retained_bytes BIGINT,
    place VARCHAR
);
COMMENT ON TABLE memory_moment IS 'Derived: what the allocator of a device held at moments of a snapshot''s history';
COMMENT ON COLUMN memory_moment.artifact_id IS 'artifact.id';
COMMENT ON COLUMN memory_moment.row IS 'memory_event.row of the moment; NULL for a snapshot without events';
COMMENT ON COLUMN memory_moment.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN memory_moment.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN memory_moment.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN memory_moment.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN memory_moment.device IS 'Device index; -1 for host memory';
COMMENT ON COLUMN memory_moment.moment IS 'peak (most live) | oom (each failed allocation) | end (when the snapshot was taken)';
COMMENT ON COLUMN memory_moment.live_bytes IS 'Bytes in allocations that the job had not freed';
COMMENT ON COLUMN memory_moment.awaiting_bytes IS 'Bytes that the job had freed and that wait for other streams';
COMMENT ON COLUMN memory_moment.reserved_bytes IS 'Bytes that the allocator had obtained from the driver';
COMMENT ON COLUMN memory_moment.needed_bytes IS 'end only: the most that was live or awaiting during the last turns';
COMMENT ON COLUMN memory_moment.n_needed_turns IS 'end only: how many turns of the loop those are; NULL when no turns are known';
COMMENT ON COLUMN memory_moment.retained_bytes IS 'oom only: bytes that were live at the failure before it and still are; NULL at the first';
COMMENT ON COLUMN memory_moment.place IS 'oom: innermost line of the job that this request and the failed one before it share, at the first its own';

CREATE TABLE memory_owner (
    artifact_id INTEGER NOT NULL, row BIGINT, device INTEGER NOT NULL,
    moment VARCHAR NOT NULL,
    category VARCHAR NOT NULL,
    place VARCHAR,
    caller VARCHAR,
    n_blocks BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
COMMENT ON TABLE memory_owner IS 'Derived: whose the live memory of a device was, by category and place in the code';
COMMENT ON COLUMN memory_owner.artifact_id IS 'artifact.id';
COMMENT ON COLUMN memory_owner.row IS 'memory_event.row of the first of these allocations; NULL when made before the history began';
COMMENT ON COLUMN memory_owner.device IS 'Device index; -1 for host memory';
COMMENT ON COLUMN memory_owner.moment IS 'oom (last failed allocation) | peak | growth (what stays turn after turn) | released (live at the peak, freed before the end) | awaiting (freed, waits for other streams at the end) | private (made in private pools)';
COMMENT ON COLUMN memory_owner.category IS 'As memory_block.category, by profiler, stack or lifetime; kept: from earlier turns; unknown';
COMMENT ON COLUMN memory_owner.place IS 'Line that tells these allocations from others, as FUNCTION (FILE:LINE); NULL without stacks';
COMMENT ON COLUMN memory_owner.caller IS 'Line of the job''s code that called it';
COMMENT ON COLUMN memory_owner.n_blocks IS 'Number of allocations';
COMMENT ON COLUMN memory_owner.bytes IS 'Their bytes';

CREATE TABLE memory_growth (
    artifact_id INTEGER NOT NULL, row BIGINT, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    device INTEGER NOT NULL,
    source VARCHAR NOT NULL,
    turn_origin VARCHAR NOT NULL,
    n_turns INTEGER NOT NULL,
    first_step BIGINT,
    slope_bytes DOUBLE NOT NULL,
    slope_low_bytes DOUBLE NOT NULL,
    slope_high_bytes DOUBLE NOT NULL,
    kept_bytes BIGINT NOT NULL,
    n_kept BIGINT NOT NULL,
    n_kept_turns INTEGER NOT NULL,
    n_sizes INTEGER NOT NULL,
    live_bytes BIGINT NOT NULL,
    place VARCHAR
);
COMMENT ON TABLE memory_growth IS 'Derived: devices whose live memory rises from turn to turn of the loop, sawtooth excluded';
COMMENT ON COLUMN memory_growth.artifact_id IS 'artifact.id';
COMMENT ON COLUMN memory_growth.row IS 'memory_event.row of the last allocation that stays';
COMMENT ON COLUMN memory_growth.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN memory_growth.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN memory_growth.step IS 'Last step; NULL unknown';
COMMENT ON COLUMN memory_growth.ts_ns IS 'Time of that allocation, ns since the epoch; NULL unknown';
COMMENT ON COLUMN memory_growth.device IS 'Device index; -1 for host memory';
COMMENT ON COLUMN memory_growth.source IS 'retained-graph (results of several operators of each forward pass) | gradient (made by backward passes) | module-state | loader | optimizer | unknown';
COMMENT ON COLUMN memory_growth.turn_origin IS 'How turns are known: annotation | periodicity (of the places that allocate)';
COMMENT ON COLUMN memory_growth.n_turns IS 'Turns that were fitted';
COMMENT ON COLUMN memory_growth.first_step IS 'Step of the first of them, where steps are marked';
COMMENT ON COLUMN memory_growth.slope_bytes IS 'Growth of the least live memory of each turn, bytes a turn, by least squares';
COMMENT ON COLUMN memory_growth.slope_low_bytes IS 'Lower end of its 95 % interval';
COMMENT ON COLUMN memory_growth.slope_high_bytes IS 'Upper end of its 95 % interval';
COMMENT ON COLUMN memory_growth.kept_bytes IS 'Bytes of the allocations that stay, of places that left something behind in several turns';
COMMENT ON COLUMN memory_growth.n_kept IS 'Number of those allocations';
COMMENT ON COLUMN memory_growth.n_kept_turns IS 'Most turns in which one place left something behind';
COMMENT ON COLUMN memory_growth.n_sizes IS 'Number of different sizes among those allocations';
COMMENT ON COLUMN memory_growth.live_bytes IS 'Live bytes at the end';
COMMENT ON COLUMN memory_growth.place IS 'Line that tells these allocations from others; NULL without stacks';

CREATE TABLE health_part (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT NOT NULL, ts_ns BIGINT,
    "table" VARCHAR NOT NULL,
    part VARCHAR NOT NULL,
    value DOUBLE NOT NULL,
    score DOUBLE NOT NULL,
    healthy DOUBLE NOT NULL,
    bad DOUBLE NOT NULL,
    says VARCHAR NOT NULL
);
COMMENT ON TABLE health_part IS 'Derived: parts of the health of each step; for charts, no verdict rests on it';
COMMENT ON COLUMN health_part.artifact_id IS 'artifact.id';
COMMENT ON COLUMN health_part.row IS 'Row of "table" that tells most of it';
COMMENT ON COLUMN health_part.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN health_part.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN health_part.step IS 'Step number as the job counts it';
COMMENT ON COLUMN health_part.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN health_part."table" IS 'tensor | sample | slice';
COMMENT ON COLUMN health_part.part IS 'gradient-sparsity (share of gradient elements that are zero) | memory-residency (memory held by the allocator / memory of the device) | backward-forward (time of the backward / of the forward)';
COMMENT ON COLUMN health_part.value IS 'Its value, a ratio; backward-forward may be above 1';
COMMENT ON COLUMN health_part.score IS '100 at the healthy limit or below it, 0 at the bad one or above it, in proportion between';
COMMENT ON COLUMN health_part.healthy IS 'Limit up to which it is healthy';
COMMENT ON COLUMN health_part.bad IS 'Limit from which on it is bad';
COMMENT ON COLUMN health_part.says IS 'What moves its limits, such as activation checkpointing; empty when nothing does';

CREATE TABLE device_time (
    artifact_id INTEGER NOT NULL, row BIGINT NOT NULL, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    device INTEGER NOT NULL,
    to_ns BIGINT NOT NULL,
    n_work BIGINT NOT NULL,
    compute_ns BIGINT NOT NULL,
    communication_ns BIGINT NOT NULL,
    copy_ns BIGINT NOT NULL,
    exposed_communication_ns BIGINT NOT NULL,
    exposed_copy_ns BIGINT NOT NULL,
    idle_ns BIGINT NOT NULL
);
COMMENT ON TABLE device_time IS 'Derived: what each device of each trace did from its first to its last work; every instant counts once. to_ns - ts_ns = compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns';
COMMENT ON COLUMN device_time.artifact_id IS 'artifact.id';
COMMENT ON COLUMN device_time.row IS 'slice.row of its first work';
COMMENT ON COLUMN device_time.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN device_time.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN device_time.step IS 'NULL: over all steps of the trace';
COMMENT ON COLUMN device_time.ts_ns IS 'Begin of the first work, ns since the epoch';
COMMENT ON COLUMN device_time.device IS 'Device index';
COMMENT ON COLUMN device_time.to_ns IS 'End of the last work to end, ns since the epoch';
COMMENT ON COLUMN device_time.n_work IS 'Kernels, copies, fills and graph launches';
COMMENT ON COLUMN device_time.compute_ns IS 'While at least one kernel that is no collective ran, ns';
COMMENT ON COLUMN device_time.communication_ns IS 'While at least one kernel of a collective ran, ns; it may wait in there for other ranks';
COMMENT ON COLUMN device_time.copy_ns IS 'While at least one copy or fill ran, ns';
COMMENT ON COLUMN device_time.exposed_communication_ns IS 'Of communication_ns, while no computation ran';
COMMENT ON COLUMN device_time.exposed_copy_ns IS 'Of copy_ns, while neither computation nor communication ran';
COMMENT ON COLUMN device_time.idle_ns IS 'While nothing ran, ns';

CREATE TABLE device_idle (
    artifact_id INTEGER NOT NULL,
    row BIGINT,
    proc_id INTEGER,
    device INTEGER NOT NULL,
    cause VARCHAR NOT NULL,
    n_gaps BIGINT NOT NULL,
    total_ns BIGINT NOT NULL,
    longest_ns BIGINT NOT NULL
);
COMMENT ON TABLE device_idle IS 'Derived: device_time.idle_ns by what kept the next work from starting';
COMMENT ON COLUMN device_idle.artifact_id IS 'artifact.id';
COMMENT ON COLUMN device_idle.row IS 'slice.row of the work after the longest of these gaps';
COMMENT ON COLUMN device_idle.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN device_idle.device IS 'Device index';
COMMENT ON COLUMN device_idle.cause IS 'start (launched in time; up to 3 us) | queued (launched in time, but waited longer: for an event, another stream or the device) | sync (the host had waited for the device to become idle) | input (the host waited for a data loader) | allocation (the host allocated or freed) | launch (the host launched too slowly, gaps up to 100 us) | host (the host did something else) | unknown (the launch is not recorded)';
COMMENT ON COLUMN device_idle.n_gaps IS 'Number of gaps';
COMMENT ON COLUMN device_idle.total_ns IS 'Their sum, ns';
COMMENT ON COLUMN device_idle.longest_ns IS 'The longest of them, ns';

CREATE TABLE device_gap (
    artifact_id INTEGER NOT NULL, row BIGINT, proc_id INTEGER, rank INTEGER, step BIGINT, ts_ns BIGINT,
    device INTEGER NOT NULL,
    dur_ns BIGINT NOT NULL,
    cause VARCHAR NOT NULL,
    cause_row BIGINT,
    last_row BIGINT,
    launch_row BIGINT
);
COMMENT ON TABLE device_gap IS 'Derived: the longest gaps of each device, a hundred at most';
COMMENT ON COLUMN device_gap.artifact_id IS 'artifact.id';
COMMENT ON COLUMN device_gap.row IS 'slice.row of the work that ends the gap';
COMMENT ON COLUMN device_gap.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN device_gap.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN device_gap.step IS 'Step of that work; NULL unknown';
COMMENT ON COLUMN device_gap.ts_ns IS 'Begin, ns since the epoch';
COMMENT ON COLUMN device_gap.device IS 'Device index';
COMMENT ON COLUMN device_gap.dur_ns IS 'Duration, ns';
COMMENT ON COLUMN device_gap.cause IS 'As device_idle.cause';
COMMENT ON COLUMN device_gap.cause_row IS 'slice.row of the wait of the host that explains it: sync, input, allocation';
COMMENT ON COLUMN device_gap.last_row IS 'slice.row of the work before it';
COMMENT ON COLUMN device_gap.launch_row IS 'slice.row of the call that launched the work after it';

CREATE TABLE launch_queue (
    artifact_id INTEGER NOT NULL,
    row BIGINT,
    proc_id INTEGER,
    device INTEGER NOT NULL,
    stream BIGINT,
    n_launches BIGINT NOT NULL,
    n_blocked BIGINT NOT NULL,
    blocked_ns BIGINT NOT NULL
);
COMMENT ON TABLE launch_queue IS 'Derived: streams with at least 1024 launches, and how often the host met a full queue of them';
COMMENT ON COLUMN launch_queue.artifact_id IS 'artifact.id';
COMMENT ON COLUMN launch_queue.row IS 'slice.row of the longest launch that met a full queue; NULL none did';
COMMENT ON COLUMN launch_queue.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN launch_queue.device IS 'Device index';
COMMENT ON COLUMN launch_queue.stream IS 'Stream; NULL when not recorded';
COMMENT ON COLUMN launch_queue.n_launches IS 'Calls that launched work on it';
COMMENT ON COLUMN launch_queue.n_blocked IS 'Calls made while 1024 earlier ones had not started';
COMMENT ON COLUMN launch_queue.blocked_ns IS 'Duration of those calls, ns';

CREATE TABLE critical_path (
    artifact_id INTEGER NOT NULL,
    row BIGINT,
    proc_id INTEGER,
    device INTEGER NOT NULL,
    kind VARCHAR NOT NULL,
    name_id UBIGINT,
    n_stretches BIGINT NOT NULL,
    total_ns BIGINT NOT NULL,
    longest_ns BIGINT NOT NULL
);
COMMENT ON TABLE critical_path IS 'Derived: the chain of work and waits that decided when each device of each trace was done, from its first launch to its end. Stretches touch, so they add up to that time; what is not in here would not have ended anything sooner';
COMMENT ON COLUMN critical_path.artifact_id IS 'artifact.id';
COMMENT ON COLUMN critical_path.row IS 'slice.row of the longest stretch: the work, or the call that launched the work after it; NULL not recorded';
COMMENT ON COLUMN critical_path.proc_id IS 'proc.id; NULL when no process is known';
COMMENT ON COLUMN critical_path.device IS 'Device index';
COMMENT ON COLUMN critical_path.kind IS 'compute | communication | copy (of the device) | queue (between the end of work and the start of what was queued behind it) | launch (from the call to the start) | return (from the end of work to the end of the call that waited for it) | host | input (host in a data loader) | allocation (host allocating) | unknown (before work whose launch is not recorded)';
COMMENT ON COLUMN critical_path.name_id IS 'string.id of the work''s name; NULL for all that is no work of the device';
COMMENT ON COLUMN critical_path.n_stretches IS 'Number of stretches';
COMMENT ON COLUMN critical_path.total_ns IS 'Their sum, ns';
COMMENT ON COLUMN critical_path.longest_ns IS 'The longest of them, ns';

CREATE TABLE outcome (
    proc_id INTEGER,
    attempt INTEGER NOT NULL,
    result VARCHAR NOT NULL,
    strength VARCHAR NOT NULL,
    artifact_id INTEGER,
    line BIGINT,
    ts_ns BIGINT,
    detail VARCHAR NOT NULL
);
COMMENT ON TABLE outcome IS 'Derived: evidence of how each process (proc_id) or the attempt as a whole (NULL) ended';
COMMENT ON COLUMN outcome.proc_id IS 'proc.id; NULL for the attempt as a whole';
COMMENT ON COLUMN outcome.attempt IS 'proc.attempt';
COMMENT ON COLUMN outcome.artifact_id IS 'artifact.id of the evidence';
COMMENT ON COLUMN outcome.line IS 'Line of the evidence';
COMMENT ON COLUMN outcome.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN outcome.detail IS 'What was said';
COMMENT ON COLUMN outcome.result IS 'completed | failed';
COMMENT ON COLUMN outcome.strength IS 'proof | strong | indication';

CREATE TABLE finding (
    id INTEGER PRIMARY KEY,
    rule VARCHAR NOT NULL,
    variant VARCHAR NOT NULL,
    severity VARCHAR NOT NULL,
    strength VARCHAR NOT NULL,
    confidence DOUBLE,
    attempt INTEGER,
    proc_id INTEGER,
    rank INTEGER,
    step BIGINT,
    ts_ns BIGINT,
    message VARCHAR NOT NULL,
    causes JSON,
    requires JSON,
    explained_by INTEGER,
    evidence JSON,
    facts JSON,
    fingerprint VARCHAR NOT NULL
);
COMMENT ON TABLE finding IS 'What rules found';
COMMENT ON COLUMN finding.id IS 'Number of the finding in this case';
COMMENT ON COLUMN finding.rule IS 'Id of the rule';
COMMENT ON COLUMN finding.variant IS 'Variant of the rule that found it';
COMMENT ON COLUMN finding.attempt IS 'proc.attempt';
COMMENT ON COLUMN finding.proc_id IS 'proc.id; NULL for the job';
COMMENT ON COLUMN finding.rank IS 'Global rank of that process; NULL unknown';
COMMENT ON COLUMN finding.step IS 'Step number as the job counts it; NULL unknown';
COMMENT ON COLUMN finding.ts_ns IS 'Time, ns since the epoch; NULL unknown';
COMMENT ON COLUMN finding.message IS 'The claim in one sentence';
COMMENT ON COLUMN finding.severity IS 'critical | high | medium | info';
COMMENT ON COLUMN finding.strength IS 'proof | strong | indication';
COMMENT ON COLUMN finding.confidence IS 'Probability that it is the root cause, 0 to 1, by labelled cases; NULL where another finding explains it';
COMMENT ON COLUMN finding.causes IS 'States that it brings about: [{"state", "entity"}]';
COMMENT ON COLUMN finding.requires IS 'States that would explain it';
COMMENT ON COLUMN finding.explained_by IS 'finding.id of its cause; NULL for a root';
COMMENT ON COLUMN finding.evidence IS 'Positions: [{"artifact", "line" | "byte" | "row", "text"}]';
COMMENT ON COLUMN finding.facts IS 'Columns of the rule''s row';
COMMENT ON COLUMN finding.fingerprint IS 'Stable over re-runs: rule, rank, step and decisive text, not ids or times';

CREATE TABLE rule_run (
    rule VARCHAR NOT NULL,
    variant VARCHAR,
    proc_id INTEGER,
    outcome VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    missing_capability VARCHAR,
    n_findings INTEGER NOT NULL
);
COMMENT ON TABLE rule_run IS 'What each rule did for each process';
COMMENT ON COLUMN rule_run.rule IS 'Id of the rule';
COMMENT ON COLUMN rule_run.variant IS 'Variant that ran; NULL when none could';
COMMENT ON COLUMN rule_run.proc_id IS 'proc.id; NULL for the job as a whole';
COMMENT ON COLUMN rule_run.reason IS 'Why it ran, did not run or failed';
COMMENT ON COLUMN rule_run.n_findings IS 'Number of findings';
COMMENT ON COLUMN rule_run.outcome IS 'found | nothing-found (could have been seen, was not) | not-run (evidence missing) | out-of-time | failed (the rule itself)';
COMMENT ON COLUMN rule_run.missing_capability IS 'Capability whose absence kept the rule from running';

CREATE TABLE wait_group (
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    name_id UBIGINT NOT NULL,
    description VARCHAR,
    backend VARCHAR,
    n_members INTEGER NOT NULL,
    n_dumps INTEGER NOT NULL
);
COMMENT ON TABLE wait_group IS 'Process groups of the job, each joined from the flight recorder dumps of its members';
COMMENT ON COLUMN wait_group.number IS 'Number of the group in this case, from 0';
COMMENT ON COLUMN wait_group.attempt IS 'Attempt of the job';
COMMENT ON COLUMN wait_group.name_id IS 'string.id of its name; groups of one name with other members are others';
COMMENT ON COLUMN wait_group.description IS 'What it is for, such as default_pg or mesh_tp; NULL unknown';
COMMENT ON COLUMN wait_group.backend IS 'nccl | gloo | …; NULL unknown';
COMMENT ON COLUMN wait_group.n_members IS 'Number of its ranks';
COMMENT ON COLUMN wait_group.n_dumps IS 'Number of its ranks of which there is a dump';

CREATE TABLE wait_member (
    number INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    proc_id INTEGER,
    artifact_id INTEGER,
    group_id INTEGER,
    last_called BIGINT,
    first_open BIGINT,
    row BIGINT,
    operation VARCHAR,
    called_ns BIGINT,
    is_started BOOLEAN,
    is_first BOOLEAN,
    has_entries BOOLEAN
);
COMMENT ON TABLE wait_member IS 'How far each member of each group came in its collectives, and where it waits';
COMMENT ON COLUMN wait_member.number IS 'wait_group.number';
COMMENT ON COLUMN wait_member.rank IS 'Global rank';
COMMENT ON COLUMN wait_member.proc_id IS 'proc.id of the rank; NULL without a dump';
COMMENT ON COLUMN wait_member.artifact_id IS 'artifact.id of its dump; NULL without one';
COMMENT ON COLUMN wait_member.group_id IS 'process_group.id in that dump';
COMMENT ON COLUMN wait_member.last_called IS 'Sequence number of the last collective that it called; 0 none; NULL unknown';
COMMENT ON COLUMN wait_member.first_open IS 'Sequence number of the first collective that it called and did not finish; NULL none known';
COMMENT ON COLUMN wait_member.row IS 'collective.row of that call; NULL where the recorder no longer has it';
COMMENT ON COLUMN wait_member.operation IS 'Operation of that call';
COMMENT ON COLUMN wait_member.called_ns IS 'Time of that call, ns since the epoch';
COMMENT ON COLUMN wait_member.is_started IS 'The device had begun with that call, where the recorder notes it';
COMMENT ON COLUMN wait_member.is_first IS 'That call, or a send or receive in this group, is the first of all groups that the rank called and did not finish';
COMMENT ON COLUMN wait_member.has_entries IS 'Its dump holds entries at all; NULL without a dump';

CREATE TABLE wait_culprit (
    attempt INTEGER NOT NULL,
    place INTEGER NOT NULL,
    rank INTEGER,
    reason VARCHAR NOT NULL,
    strength VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    sequence BIGINT,
    n_groups INTEGER NOT NULL,
    n_waiting INTEGER NOT NULL,
    n_peers INTEGER NOT NULL,
    peers INTEGER[] NOT NULL,
    own_number INTEGER,
    own_sequence BIGINT,
    says VARCHAR
);
COMMENT ON TABLE wait_culprit IS 'Ranks for which, in the end, all others wait, the most telling first';
COMMENT ON COLUMN wait_culprit.attempt IS 'Attempt of the job';
COMMENT ON COLUMN wait_culprit.place IS 'Place among the culprits of the attempt, from 1: by strength, then by the ranks that wait for it';
COMMENT ON COLUMN wait_culprit.rank IS 'Global rank; NULL where ranks differ and none stands against most';
COMMENT ON COLUMN wait_culprit.reason IS 'absent (did not call what peers called, and waits for nobody) | behind (did not finish what peers finished) | not-started (its device had not begun what those of its peers had) | no-dump (nothing is known of it) | mismatch (called something else) | alone (called what no peer called) | cycle (waits in one group while it is waited for in another)';
COMMENT ON COLUMN wait_culprit.strength IS 'strong | indication';
COMMENT ON COLUMN wait_culprit.number IS 'wait_group.number of the group in which others wait for it';
COMMENT ON COLUMN wait_culprit.sequence IS 'Sequence number of the call there; NULL for sends and receives';
COMMENT ON COLUMN wait_culprit.n_groups IS 'Number of groups in which it is so';
COMMENT ON COLUMN wait_culprit.n_waiting IS 'Number of ranks that wait for it, directly or through others';
COMMENT ON COLUMN wait_culprit.n_peers IS 'Number of ranks on the other side of that call: they wait, finished it, or called it otherwise';
COMMENT ON COLUMN wait_culprit.peers IS 'The first of those ranks, nine at most';
COMMENT ON COLUMN wait_culprit.own_number IS 'cycle: wait_group.number of the group in which the rank itself waits';
COMMENT ON COLUMN wait_culprit.own_sequence IS 'cycle: sequence number of its call there; NULL for a send or receive';
COMMENT ON COLUMN wait_culprit.says IS 'mismatch: skipped | extra | swapped, where the neighbouring calls show it; cycle: unnamed where no rank stands against most';

CREATE TABLE wait_evidence (
    attempt INTEGER NOT NULL,
    place INTEGER NOT NULL,
    n INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    artifact_id INTEGER NOT NULL,
    row BIGINT NOT NULL
);
COMMENT ON TABLE wait_evidence IS 'Calls that show it of each culprit: its own first where it has one, then those of its peers';
COMMENT ON COLUMN wait_evidence.attempt IS 'wait_culprit.attempt';
COMMENT ON COLUMN wait_evidence.place IS 'wait_culprit.place';
COMMENT ON COLUMN wait_evidence.n IS 'Order, from 0';
COMMENT ON COLUMN wait_evidence.rank IS 'Global rank that recorded the call';
COMMENT ON COLUMN wait_evidence.artifact_id IS 'artifact.id';
COMMENT ON COLUMN wait_evidence.row IS 'collective.row';

-- What an error says, and a text of at most `n` characters that shows that it was cut.
CREATE MACRO error_text(exception, message) AS concat_ws(': ', exception, nullif(message, ''));
CREATE MACRO briefly(x, n) AS CASE WHEN length(x) > n THEN left(x, n - 1) || '…' ELSE x END;
CREATE VIEW kernel AS
SELECT s.*, n.text AS name FROM slice AS s JOIN string AS n ON n.id = s.name_id WHERE s.kind = 'kernel';
CREATE VIEW device_work AS
SELECT s.*, n.text AS name FROM slice AS s JOIN string AS n ON n.id = s.name_id
WHERE s.kind IN ('kernel', 'memcpy', 'memset', 'graph');
CREATE VIEW cpu_op AS
SELECT s.*, n.text AS name FROM slice AS s JOIN string AS n ON n.id = s.name_id WHERE s.kind = 'cpu_op';
CREATE VIEW runtime_call AS
SELECT s.*, n.text AS name FROM slice AS s JOIN string AS n ON n.id = s.name_id WHERE s.kind IN ('runtime', 'driver');
CREATE VIEW annotation AS
SELECT s.*, n.text AS name FROM slice AS s JOIN string AS n ON n.id = s.name_id
WHERE s.kind IN ('annotation', 'gpu_annotation');
CREATE VIEW span AS
SELECT s.*, n.text AS name, r.text AS request, d.trace_key, d.span_key, d.parent_key, d.service, d.status, d.said, d.attributes
FROM slice AS s
JOIN string AS n ON n.id = s.name_id
LEFT JOIN span_detail AS d ON d.artifact_id = s.artifact_id AND d.row = s.row
LEFT JOIN string AS r ON r.id = s.request_id
WHERE s.kind = 'span';
CREATE VIEW log AS
SELECT e.*, x.text AS exception, m.text AS message, p.attempt, p.host
FROM log_event AS e
LEFT JOIN string AS x ON x.id = e.exception_id
LEFT JOIN string AS m ON m.id = e.message_id
LEFT JOIN proc AS p ON p.id = e.proc_id;
CREATE VIEW metric AS
SELECT s.*, n.text AS name, y.text AS entity
FROM sample AS s JOIN string AS n ON n.id = s.name_id LEFT JOIN string AS y ON y.id = s.entity_id;
CREATE VIEW frame AS
SELECT k.id, k.parent_id, k.depth, f.text AS function, g.text AS file, k.line, k.user_stack_id
FROM stack AS k JOIN string AS f ON f.id = k.function_id LEFT JOIN string AS g ON g.id = k.file_id;
CREATE VIEW health_score AS
WITH
told AS (
    SELECT proc_id, rank, step,
        max(score) FILTER (WHERE part = 'gradient-sparsity') AS sparsity,
        max(score) FILTER (WHERE part = 'memory-residency') AS residency,
        max(score) FILTER (WHERE part = 'backward-forward') AS times
    FROM health_part
    GROUP BY proc_id, rank, step
),
carried AS (
    SELECT proc_id, rank, step,
        last_value(sparsity IGNORE NULLS) OVER w AS sparsity,
        last_value(residency IGNORE NULLS) OVER w AS residency,
        last_value(times IGNORE NULLS) OVER w AS times
    FROM told
    WINDOW w AS (PARTITION BY proc_id ORDER BY step)
)
SELECT proc_id, rank, step, list_avg([sparsity, residency, times]) AS score,
    len(list_filter([sparsity, residency, times], LAMBDA x: x IS NOT NULL)) AS n_parts,
    sparsity AS gradient_sparsity_score, residency AS memory_residency_score, times AS backward_forward_score
FROM carried;
COMMENT ON VIEW health_score IS 'Health of each step, 0 (bad) to 100 (healthy): the mean of its parts, each with the last value that was recorded up to that step; NULL parts are not on record';
CREATE VIEW stored_tensor AS
SELECT t.*, n.text AS name, s.text AS shape
FROM checkpoint_tensor AS t JOIN string AS n ON n.id = t.name_id LEFT JOIN string AS s ON s.id = t.shape_id;
CREATE VIEW slice_summary AS
SELECT
    s.artifact_id, s.proc_id, s.kind, s.device, n.text AS name,
    count(*) AS n,
    sum(s.dur_ns)::BIGINT AS total_ns,
    sum(s.dur_ns) / sum(sum(s.dur_ns)) OVER (PARTITION BY s.artifact_id, s.kind) AS share_ratio,
    avg(s.dur_ns) AS mean_ns, median(s.dur_ns) AS median_ns, min(s.dur_ns) AS min_ns, max(s.dur_ns) AS max_ns,
    coalesce(stddev_samp(s.dur_ns), 0) AS stddev_ns,
    sum(s.bytes)::BIGINT AS bytes
FROM slice AS s JOIN string AS n ON n.id = s.name_id
WHERE s.dur_ns IS NOT NULL
GROUP BY s.artifact_id, s.proc_id, s.kind, s.device, n.text;
COMMENT ON VIEW kernel IS 'Device kernels with their names';
COMMENT ON VIEW slice_summary IS 'Kernels, copies, calls, operators and ranges by name: number, total, share of all of their kind in the artifact, mean, median, extremes, deviation (of a sample) and bytes, as nsys stats sums them up (cuda_gpu_kern_sum, cuda_api_sum, cuda_gpu_mem_time_sum, nvtx_sum, osrt_sum)';
COMMENT ON VIEW device_work IS 'All that keeps a device busy: kernels, copies, fills, and launches of CUDA graphs as a whole; what is idle shows only against this';
COMMENT ON VIEW cpu_op IS 'Host operators with their names';
COMMENT ON VIEW runtime_call IS 'CUDA runtime and driver calls with their names';
COMMENT ON VIEW annotation IS 'record_function and NVTX ranges with their names';
COMMENT ON VIEW span IS 'Spans of services with their names, requests, ids, services and attributes';
COMMENT ON VIEW log IS 'log_event with its texts, attempt and host';
COMMENT ON VIEW metric IS 'sample with its names';
COMMENT ON VIEW frame IS 'stack with its texts';
COMMENT ON VIEW stored_tensor IS 'checkpoint_tensor with its texts';
