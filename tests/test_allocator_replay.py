"""Recorded histories are reproduced, or the model abstains; other settings are predicted as they really turned out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from allocator_records import SNAPSHOTS, TRUTH, Snapshot, peak_up_to, truth_of
from support import ARTIFACTS, ROOT, needs_artifacts

from forensics.investigation import Case
from forensics.models.allocator_whatif import what_ifs
from forensics.pipeline import analyze

FIXTURES = ROOT / "fixtures"
RECORDED = sorted(path.parents[1].name for path in FIXTURES.glob("memory-*/artifacts/memory_snapshot.pickle"))
# The recorder's own example of an incomplete one: everything before the first event is unknown.
NO_HISTORY = {"empty_process", "history_off", "history_off__torch2.6"}


def snapshot_of(name: str, *, without: int = 0) -> Snapshot:
    return Snapshot(FIXTURES / name / "artifacts" / "memory_snapshot.pickle", without=without)


@pytest.mark.parametrize("name", RECORDED)
def test_every_address_and_the_reserved_bytes_of_a_real_history_are_reproduced(name: str) -> None:
    found = snapshot_of(name).fit()
    assert found.accepted, found.reason
    assert found.check.n_at_address == found.check.n_allocs
    assert found.reserved_error == 0


def test_the_replayed_fixtures_have_streams_pools_retries_and_expandable_segments() -> None:
    fits = [snapshot_of(name).fit() for name in RECORDED]
    groups = {group for found in fits for group in found.history.groups}
    assert len({stream for _, stream in groups}) > 1
    assert {pool for pool, _ in groups} > {"0.0"}
    assert any(found.own.n_retries for found in fits)
    assert any(found.settings.expandable for found in fits)


FEW = 20  # events


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_history_that_lacks_its_beginning_is_rewound_from_its_end(name: str, share: float) -> None:
    whole = snapshot_of(name).fit()
    n_without = int(share * whole.history.n_events)
    found = snapshot_of(name, without=n_without).fit()
    if whole.history.n_events - n_without < FEW and not found.accepted:
        assert found.reason  # too little to tell apart how the segments came about, and it says so
        return
    assert found.runs
    assert found.accepted, found.reason
    assert found.check.share_at_address >= 0.95


def test_what_expandable_segments_really_did_is_predicted_from_the_record_without_them() -> None:
    found = snapshot_of("memory-fragmentation").fit()
    (tried,) = what_ifs(found, ["expandable_segments:True"])
    really = snapshot_of("memory-fragmentation-healthy").fit()
    assert tried.fits
    assert tried.spare is not None
    assert tried.spare > 0
    peak = peak_up_to(really, found.history.n_allocs + 1)
    assert tried.peak_reserved == pytest.approx(peak, rel=0.02)


def test_the_recorded_setting_is_predicted_to_fail_where_it_did() -> None:
    found = snapshot_of("memory-pinned-segments").fit()
    (row,) = (failure.row for failure in found.history.failures)
    assert found.own.failed_row == row
    assert found.own.spare is not None
    assert found.own.spare < 0


def test_a_full_device_is_predicted_to_be_full_under_every_setting() -> None:
    assert not any(tried.fits for tried in what_ifs(snapshot_of("memory-capacity").fit()))


def test_where_nothing_was_refused_the_room_is_not_known_and_more_memory_is_not_promised() -> None:
    found = snapshot_of("memory-fragmentation-healthy").fit()
    tried = {found.setting: found.fits for found in what_ifs(found)}
    assert tried[""] is None
    assert found.room.high is None


def test_the_size_of_the_device_from_other_evidence_tells_the_room() -> None:
    found = snapshot_of("memory-fragmentation-healthy").fit(told=16 << 30)
    assert all(tried.fits for tried in what_ifs(found))


def test_the_size_of_the_device_is_read_off_the_warnings_of_refused_requests(tmp_path: Path) -> None:
    """PyTorch since 2.13 prints it when the device refuses memory, also where the second try is served."""
    artifacts = tmp_path / "artifacts"
    shutil.copytree(FIXTURES / "memory-fragmentation-healthy" / "artifacts", artifacts)
    warning = "memory allocation failed with OOM on device 0 while trying to allocate 20971520 bytes"
    (artifacts / "stderr.log").write_text(
        f"[W1130 00:00:57.622255948 A.cpp:3934] {warning} (free: 5, total: {16 << 30}).\n"
    )
    analyze(artifacts, tmp_path / "out")
    with Case(tmp_path / "out") as case:
        (room,) = case.query("SELECT room_low_bytes >> 30, room_high_bytes >> 30 FROM allocator_replay").fetchall()
        assert case.query("SELECT count(*) FROM replay WHERE fits IS NOT TRUE").fetchall() == [(0,)]
    assert room == (15, 16)


def test_a_record_that_no_such_allocator_made_is_not_replayed() -> None:
    snapshot = snapshot_of("memory-healthy")
    snapshot.con.execute("UPDATE memory_event SET addr = addr + 512 WHERE action = 'alloc' AND row % 7 = 0")
    found = snapshot.fit()
    assert not found.accepted
    assert "land at the recorded address; the first that does not is event" in found.reason


def test_reserved_bytes_that_the_model_does_not_explain_are_a_reason_to_abstain() -> None:
    snapshot = snapshot_of("memory-healthy")
    snapshot.con.execute(
        "INSERT INTO memory_event BY NAME "
        "SELECT * REPLACE (100000 AS row, 1125899906842624 AS addr, 134217728 AS size_bytes) FROM memory_event "
        "WHERE action = 'segment_alloc' LIMIT 1"
    )
    found = snapshot.fit()
    assert not found.accepted
    assert "reserved bytes differ" in found.reason


def test_without_stacks_it_is_not_told_who_gave_back_segments() -> None:
    """Segments may have been given back by the job or inside a request: only the stacks tell."""
    snapshot = snapshot_of("memory-pinned-segments-healthy")
    snapshot.con.execute("UPDATE memory_event SET stack_id = NULL")
    assert snapshot.history().is_ambiguous


def test_the_tables_say_what_was_replayed_and_what_pins(tmp_path: Path) -> None:
    analyze(FIXTURES / "memory-fragmentation" / "artifacts", tmp_path)
    with Case(tmp_path) as case:
        replayed = case.query(
            "SELECT accepted, complete, reason, at_address_ratio, reserved_error_ratio FROM allocator_replay"
        ).fetchall()
        settings = dict(case.query("SELECT setting, fits FROM replay WHERE NOT recorded").fetchall())
        pins = case.query(
            "SELECT place, n_blocks, unlocked_bytes >> 20 FROM allocator_pin ORDER BY site_rank, row LIMIT 1"
        )
        places = pins.fetchall()
    assert replayed == [(True, True, "", 1.0, 0.0)]
    assert settings["expandable_segments:True"]
    assert not settings["roundup_power2_divisions:4"]
    assert places == [("serve (/srv/job/growing_prefill.py:42)", 10, 883)]


@needs_artifacts
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda p: p.stem)
def test_recorded_allocations_of_the_real_allocator_land_at_their_address(path: Path) -> None:
    snapshot = Snapshot(path)
    devices = snapshot.devices()
    assert devices or path.stem in NO_HISTORY
    for device in devices:
        found = snapshot.fit(device)
        assert found.accepted, found.reason
        assert found.check.share_at_address >= 0.95
        assert found.reserved_error <= 0.01


@needs_artifacts
@pytest.mark.parametrize("path", [p for p in SNAPSHOTS if "expandable" not in p.stem], ids=lambda p: p.stem)
def test_peaks_and_retries_agree_with_the_statistics_of_the_allocator(path: Path) -> None:
    truth = truth_of(path.stem)
    snapshot = Snapshot(path)
    for device in snapshot.devices():
        stats = truth["at_dump"].get(str(device))
        found = snapshot.fit(device)
        if stats is None or found.runs:
            continue
        assert found.own.peak_reserved == pytest.approx(stats["peak_reserved"], rel=0.01)


@needs_artifacts
@pytest.mark.parametrize("workload", ["kv", "pins", "train"])
def test_other_settings_turn_out_as_predicted_from_one_recording(workload: str) -> None:
    """Peaks within 2 % on nine of ten pairs; where it says whether all fits, it is right."""
    truths = {path.stem: truth_of(path.stem) for path in TRUTH.glob(f"grid_{workload}__*.json")}
    confs = {truth["setting"]: truth["conf"] for truth in truths.values()}
    recorded = {path.stem: Snapshot(path).fit() for path in SNAPSHOTS if path.stem in truths}
    n_pairs = n_peaks = n_told = n_right = 0
    for name, found in recorded.items():
        truth = truths[name]
        n_asked = found.history.n_allocs + len(found.history.failures)
        for setting in sorted(set(confs) - {truth["setting"]}):
            other = f"grid_{workload}__{setting}__{truth['room']}"
            (tried,) = what_ifs(found, [confs[setting]])
            served = recorded[other].history.n_allocs
            fitted = truths[other]["completed"] or served >= n_asked
            peak = peak_up_to(recorded[other], n_asked)
            n_pairs += 1
            n_peaks += abs(tried.peak_reserved - peak) <= 0.02 * peak
            n_told += tried.fits is not None
            n_right += tried.fits is fitted
    assert n_peaks >= 0.9 * n_pairs
    assert n_right == n_told
    assert n_told >= 0.65 * n_pairs


@needs_artifacts
def test_a_garbage_collector_is_recognised_by_what_it_gave_back() -> None:
    """Neither the memory fraction nor whether one was set is in a snapshot; without one, nothing is collected."""
    with_fraction, without = (
        Snapshot(ARTIFACTS / "allocator" / f"gc_threshold_{word}_fraction.pickle").fit() for word in ("with", "without")
    )
    assert with_fraction.settings.collects
    assert with_fraction.own.n_retries == 0
    assert not without.settings.collects
    assert without.own.n_retries == truth_of("gc_threshold_without_fraction")["at_dump"]["0"]["num_alloc_retries"]
