/*
title = "Installed binaries do not fit together"
severity = "critical"
scope = "job"
cannot_prove = """
Which of the two parts is the wrong one. A missing symbol names what was looked for, not the package that should have
brought it, unless the list of packages is part of the evidence."""
message = "{who}: {what}: {said}{detail}"
fix = "Reinstall the parts as one set: torch, its extensions (torchvision, flash-attn, deepspeed, …) and the nvidia-* packages for one CUDA version, in a fresh environment; then python -c 'import torch; torch.zeros(1).cuda()'."
causes = [{ state = "rank-failed", of = "rank" }]
references = [
  "https://pytorch.org/get-started/previous-versions/",
  "https://docs.nvidia.com/deploy/cuda-compatibility/",
]

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The loader, the driver or a package's own check refused a part of the environment with the error that is cited."""

[variant.device-report]
needs = ["fact"]
strength = "strong"
proves = "nvidia-smi found the driver not running, or of another version than its libraries."
says = "What nvidia-smi said of the driver; that the job met the same is not shown."

[variant.survived]
needs = ["log_event"]
strength = "indication"
proves = """
The loader, the driver or a package's own check reported the error that is cited, and the process went on after it."""
says = "The process went on after this error and failed with another one later: it may have done without the part."

[variant.fabric]
needs = ["log_event"]
strength = "indication"
proves = """
CUDA says that the driver is not set up yet (error 802), as on machines with NVSwitches where no fabric manager of the
driver's version runs."""
says = "What kept the fabric manager from its work is not in the evidence: its own log (journalctl -u nvidia-fabricmanager) tells."
*/
-- variant: log
WITH
device AS (
    SELECT
        max(number) FILTER (WHERE key = 'compute_capability') AS capability,
        max(value) FILTER (WHERE key = 'torch.cuda.get_arch_list()') AS architectures
    FROM fact
),
covered AS (
    -- Code for sm_XY runs on devices of the same major version from minor Y on; compute_XY is compiled on the spot.
    SELECT
        d.capability,
        d.architectures,
        len(list_filter(
            regexp_extract_all(d.architectures, '(?:sm|compute)_\d+'),
            LAMBDA a: (
                a LIKE 'sm_%'
                AND CAST(regexp_extract(a, '\d+') AS INTEGER) // 10 = CAST(floor(d.capability) AS INTEGER)
                AND CAST(regexp_extract(a, '\d+') AS INTEGER) <= CAST(round(d.capability * 10) AS INTEGER)
            ) OR (
                a LIKE 'compute_%' AND CAST(regexp_extract(a, '\d+') AS INTEGER) <= CAST(round(d.capability * 10) AS INTEGER)
            )
        )) > 0 AS torch_has_code
    FROM device AS d
    WHERE d.capability IS NOT NULL AND d.architectures IS NOT NULL
),
doubled AS (
    -- Packages of two CUDA versions that install a library under one and the same path; the later one wins.
    SELECT string_agg(key || ' ' || value, ' and ' ORDER BY key) AS packages
    FROM (SELECT DISTINCT key, value FROM fact WHERE scope = 'version' AND regexp_matches(key, '^nvidia-nccl-cu\d+$'))
    HAVING count(DISTINCT key) > 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    CASE
        WHEN e.class = 'env.abi' THEN 'a binary was built against another version than the one it met'
        WHEN e.class = 'env.library' THEN 'a shared library is missing or of another version'
        WHEN e.class = 'env.arch-mismatch' THEN 'a binary holds no code for this GPU'
        WHEN e.signature = 'fabric-manager-version' THEN 'the fabric manager is not of the driver''s version'
        WHEN e.class = 'env.driver' THEN 'the NVIDIA driver does not fit the libraries'
        WHEN e.class = 'env.toolchain' THEN 'the CUDA compiler does not fit the GPU or the driver'
        WHEN e.class = 'env.build' THEN 'the installed build does not fit the machine or the other packages'
        WHEN e.class = 'env.package' THEN 'a package is not installed'
        ELSE 'a package is of another version than its user expects'
    END AS what,
    CASE
        WHEN e.class = 'env.arch-mismatch' AND c.torch_has_code
            THEN '; torch itself has code for this device (' || c.architectures || '), so it is an extension that lacks it'
        WHEN e.class = 'env.arch-mismatch' AND NOT c.torch_has_code
            THEN '; torch was built for ' || c.architectures || ', the device has compute capability ' || c.capability
        WHEN e.class = 'env.abi' AND lower(coalesce(e.fields ->> 'symbol', '')) LIKE '%nccl%' AND b.packages IS NOT NULL
            THEN '; ' || b.packages || ' install libnccl under the same path'
        WHEN (e.fields ->> 'first_version') IS NOT NULL
            THEN '; rank ' || (e.fields ->> 'first_rank') || ' has ' || (e.fields ->> 'first_version') || ', rank '
                || (e.fields ->> 'second_rank') || ' has ' || (e.fields ->> 'second_version')
        ELSE ''
    END AS detail,
    CASE
        WHEN e.class = 'env.arch-mismatch' AND c.torch_has_code
            THEN 'Build the extension for this GPU (TORCH_CUDA_ARCH_LIST) or install a release of it that was; torch can stay.'
        WHEN e.class = 'env.arch-mismatch' THEN 'Install a torch build whose architecture list has this GPU (python -c ''import torch; print(torch.cuda.get_arch_list())'').'
        WHEN e.signature = 'fabric-manager-version'
            THEN 'Install nvidia-fabricmanager ' || (e.fields ->> 'expected_version') || ', the version of the driver, hold both packages at it, and restart the service.'
        WHEN e.class = 'env.driver' THEN 'Update the NVIDIA driver (and reboot, or unload the old kernel module), or install a torch build for an older CUDA version.'
        WHEN e.class = 'env.abi' AND b.packages IS NOT NULL AND lower(coalesce(e.fields ->> 'symbol', '')) LIKE '%nccl%'
            THEN 'Uninstall both NCCL packages and install again the one that torch requires: pip uninstall -y nvidia-nccl-cu11 nvidia-nccl-cu12, then pip install --force-reinstall torch.'
        WHEN e.class = 'env.package' THEN 'Install the missing package into the environment that the job really uses.'
    END AS fix,
    CASE WHEN e.class IN ('env.package', 'env.version') AND e.exception IS NULL AND e.source = 'python' THEN 'medium' END AS severity,
    coalesce(e.fields ->> 'symbol', e.fields ->> 'library', e.fields ->> 'module', e.signature) AS key
FROM reported_failure AS e
LEFT JOIN covered AS c ON e.class = 'env.arch-mismatch'
LEFT JOIN doubled AS b ON e.class = 'env.abi'
WHERE e.class IN (
    'env.abi', 'env.library', 'env.arch-mismatch', 'env.driver', 'env.toolchain', 'env.build', 'env.package', 'env.version'
)
  AND e.role = 'primary'
  AND NOT e.moved_on
  AND (coalesce(e.level, 'error') IN ('error', 'fatal') OR e.source = 'nccl')
  -- A module that imports itself in a circle is a fault of the code, not of the versions.
  AND e.message NOT LIKE '%partially initialized module%'
  -- 'unknown error' alone says nothing about versions, and nvidia-smi fails for a lost device too.
  AND e.signature NOT IN ('cuda-unknown-error', 'nvidia-smi-failed')
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: device-report
SELECT
    f.artifact_id,
    f.line,
    briefly(f.value, 200) AS said,
    CASE
        WHEN f.value LIKE '%version mismatch%' THEN 'the loaded driver and the driver libraries are of two versions'
        ELSE 'the NVIDIA driver is not running'
    END AS what,
    '' AS detail,
    'Reboot the host, or unload and load the nvidia kernel modules, so that driver and libraries are of one version.' AS fix,
    CASE WHEN f.value NOT LIKE '%version mismatch%' THEN 'indication' END AS strength,
    CASE WHEN f.value LIKE '%version mismatch%' THEN 'nvml-mismatch' ELSE 'driver-down' END AS key
FROM fact AS f
WHERE f.scope = 'device'
  AND f.key = 'error'
  AND (f.value LIKE '%Driver/library version mismatch%' OR f.value LIKE '%communicate with the NVIDIA driver%')
QUALIFY row_number() OVER (PARTITION BY key ORDER BY f.artifact_id, f.line) = 1
ORDER BY f.artifact_id, f.line;
-- variant: survived
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    CASE WHEN e.class = 'env.driver' THEN 'the NVIDIA driver does not answer as it should' ELSE 'a part of the environment was refused' END AS what,
    '' AS detail,
    'medium' AS severity,
    coalesce(e.fields ->> 'symbol', e.fields ->> 'library', e.fields ->> 'module', e.signature) AS key
FROM reported_failure AS e
WHERE e.class IN (
    'env.abi', 'env.library', 'env.arch-mismatch', 'env.driver', 'env.toolchain', 'env.build', 'env.package', 'env.version'
)
  AND e.role = 'primary'
  AND e.message NOT LIKE '%partially initialized module%'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: fabric
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    'CUDA found the driver not set up' AS what,
    '; on machines with NVSwitches the fabric manager does that' AS detail,
    'systemctl status nvidia-fabricmanager: install the version of the driver (cat /proc/driver/nvidia/version), start it, and wait until nvidia-smi -q says Fabric State: Completed.' AS fix,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'env.fabric-manager'
  AND e.role = 'primary'
  AND NOT e.moved_on
  -- A switch that failed is the reason then.
  AND NOT EXISTS (SELECT 1 FROM log AS o WHERE o.class = 'hw.nvswitch' AND o.role <> 'noise')
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
