"""Prometheus texts, OTLP spans and answers of health probes: whole, cut, hostile, and beside other formats."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import pytest
from support import ARTIFACTS, ROOT, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import formats, health_probe, otlp, prometheus
from forensics.formats._otlp_values import id_of

SCRAPES = """Sat Nov 29 12:00:00 UTC 2025
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"b}"} 3.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 4 # {trace_id="x"} 0.1 1.2
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 5
vllm:time_to_first_token_seconds_sum{engine="0"} 2.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="7185"} 1.0
Sat Nov 29 12:00:10 UTC 2025
vllm:num_requests_running{engine="0",model_name="a\\"b}"} NaN
up 1 1764417611500
# EOF
up 1
"""


def written(tmp_path: Path, text: str, name: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def claimants(path: Path) -> list[str]:
    """Formats that recognise a file, the surest first."""
    head = Source(path, path.name).head()
    sure = {name: module.recognise(head) for name, module in formats().items()}
    return sorted((name for name, n in sure.items() if n), key=lambda name: -sure[name])


def loaded(module: ModuleType, tmp_path: Path, text: str, name: str) -> MemorySink:
    return load(module, written(tmp_path, text, name))


def test_scrapes_keep_their_times_labels_buckets_and_settings(tmp_path: Path) -> None:
    path = written(tmp_path, SCRAPES, "metrics.txt")
    assert claimants(path)[0] == "prometheus"
    sink = load(prometheus, path)
    rows = sink.rows("sample")
    running = [row for row in rows if row["name"] == "vllm:num_requests_running"]
    assert [row["ts_ns"] for row in running] == [1764417600 * 10**9, 1764417610 * 10**9]
    assert running[0]["entity"] == 'engine="0",model_name="a"b}"'
    assert math.isnan(running[1]["value"])
    buckets = [(row["entity"], row["value"]) for row in rows if row["name"].endswith("_bucket")]
    assert buckets == [('engine="0",le="0.5"', 4), ('engine="0",le="+Inf"', 5)]
    assert [row["unit"] for row in rows if row["name"].endswith("_sum")] == ["s"]
    assert [row["ts_ns"] for row in rows if row["name"] == "up"] == [1764417611500 * 10**6, None]
    assert {"cache_config.block_size": 16.0, "scrapes": 3}.items() <= {
        f["key"]: f["number"] for f in sink.facts
    }.items()
    assert sink.clock_kind == "epoch"
    assert not sink.warnings


def test_a_series_that_comes_again_begins_another_scrape(tmp_path: Path) -> None:
    sink = loaded(prometheus, tmp_path, 'a{x="1"} 1\nb{x="1"} 2\na{x="1"} 3\nb{x="1"} 4\n', "metrics_1764417600.prom")
    assert [f["value"] for f in sink.facts] == ["2"]
    assert [row["ts_ns"] for row in sink.rows("sample")] == [1764417600 * 10**9] * 2 + [None] * 2


def test_a_line_that_is_cut_costs_itself_alone(tmp_path: Path) -> None:
    sink = loaded(prometheus, tmp_path, SCRAPES + 'vllm:num_requests_running{engine="0",mod', "metrics.txt")
    assert [warning["line"] for warning in sink.warnings] == [15]
    assert sink.quality == "partial"
    with pytest.raises(ArtifactError, match="no line holds a sample"):
        loaded(prometheus, tmp_path, "# TYPE a gauge\n", "metrics.txt")


@pytest.mark.parametrize(
    "text", ["loss 0.5\nstep 3\n", "# a comment\n", "", "PATH=/usr/bin\nHOME=/root\n", "x: 1\ny: 2\n"]
)
def test_other_texts_are_no_scrapes(tmp_path: Path, text: str) -> None:
    assert "prometheus" not in claimants(written(tmp_path, text, "metrics.txt"))


@needs_artifacts
def test_a_dump_that_a_real_exporter_wrote_is_read_line_by_line() -> None:
    path = ARTIFACTS / "crash_log" / "dlrover__xpu_timer_normal_xpu_timer_metric_0"
    assert claimants(path)[0] == "prometheus"
    sink = load(prometheus, path)
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert len(sink.rows("sample")) == len(lines) == 177
    assert not sink.warnings


SPAN = {
    "traceId": "5B8EFFF798038103D269B633813FC60C",
    "spanId": "EEE19B7EC3C1B174",
    "parentSpanId": "",
    "name": "llm_request",
    "startTimeUnixNano": "1790341371953418752",
    "endTimeUnixNano": "1790341372208341144",
    "attributes": [
        {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "14"}},
        {"key": "gen_ai.latency.time_in_queue", "value": {"doubleValue": 0.25}},
        {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "what a user asked"}},
        {"key": "gen_ai.request.id", "value": {"stringValue": "cmpl-1"}},
    ],
}
CHILD = {
    "traceId": "W47/95gDgQPSabYzgT/GDA==",
    "spanId": "7uGbfsPBsXU=",
    "parentSpanId": "7uGbfsPBsXQ=",
    "name": "prefill",
    "startTimeUnixNano": 1790341371953418752,
    "endTimeUnixNano": "1790341371963418752",
    "status": {"code": "STATUS_CODE_ERROR", "message": "cancelled"},
    "events": [{"name": "exception", "attributes": [{"key": "exception.type", "value": {"stringValue": "KeyError"}}]}],
}


def document(*spans: dict[str, object]) -> dict[str, object]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "server"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (json.dumps(document(SPAN)) + "\n" + json.dumps(document(CHILD)), [1, 2]),
        (json.dumps([document(SPAN), document(CHILD)]), [1, 1]),
        (json.dumps(document(SPAN, CHILD), indent=1), [20, 54]),
    ],
)
def test_spans_come_with_hex_ids_parents_services_and_attributes(tmp_path: Path, text: str, lines: list[int]) -> None:
    path = written(tmp_path, text, "traces.json")
    assert claimants(path) == ["otlp"]
    sink = load(otlp, path)
    first, second = sink.rows("slice")
    assert (first["kind"], first["name"], first["dur_ns"], first["request"]) == (
        "span",
        "llm_request",
        254922392,
        "cmpl-1",
    )
    assert (second["parent_row"], second["request"]) == (0, "5b8efff798038103d269b633813fc60c")
    told, error = sink.rows("span_detail")
    assert (told["trace_key"], told["span_key"], told["service"]) == (error["trace_key"], "eee19b7ec3c1b174", "server")
    assert (error["parent_key"], error["status"], error["said"]) == ("eee19b7ec3c1b174", "error", "KeyError")
    assert json.loads(told["attributes"]) == {
        "gen_ai.usage.prompt_tokens": 14, "gen_ai.latency.time_in_queue": 0.25, "gen_ai.request.id": "cmpl-1",
    }  # fmt: skip
    assert [place["line"] for place in sink.rows("position")] == lines
    assert sink.coverage[0]["complete"]


def test_the_console_exporters_objects_follow_one_another(tmp_path: Path) -> None:
    one = {
        "name": "hello", "context": {"trace_id": "0x5b8efff798038103d269b633813fc60c", "span_id": "0x051581bf3cb55c13"},
        "parent_id": None, "start_time": "2022-04-29T18:52:58.114201Z", "end_time": "2022-04-29T18:52:58.114687Z",
        "attributes": {"http.route": "/v1"}, "resource": {"attributes": {"service.name": "svc"}},
    }  # fmt: skip
    sink = loaded(otlp, tmp_path, json.dumps(one, indent=4) + "\n" + json.dumps(one, indent=4), "spans.txt")
    assert [(row["name"], row["dur_ns"]) for row in sink.rows("slice")] == [("hello", 486000)] * 2
    assert sink.rows("span_detail")[0]["service"] == "svc"


def test_of_a_document_that_ends_in_the_middle_the_whole_spans_are_kept(tmp_path: Path) -> None:
    text = json.dumps(document(SPAN, CHILD, SPAN), indent=1)
    for cut in (0.95, 0.6, 0.45):
        sink = loaded(otlp, tmp_path, text[: int(len(text) * cut)], "traces.json")
        assert 1 <= len(sink.rows("slice")) <= 2
        assert sink.rows("span_detail")[0]["service"] == "server"
        assert sink.quality == "partial" and sink.warnings[0]["code"] == "bad-json"


@pytest.mark.parametrize(
    "text", ["", "{", '{"resourceSpans": 3}', '{"resourceSpans": [{"scopeSpans": [[]]}]}', "[" * 5000]
)
def test_hostile_documents_raise_no_other_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError):
        loaded(otlp, tmp_path, text, "traces.json")


def test_ids_are_told_from_other_texts() -> None:
    assert id_of("0" * 32, "trace") is None
    assert id_of("AAAAAAAAAAA=", "span") is None
    assert id_of("zz", "span") is None
    assert id_of("EEE19B7EC3C1B174", "trace") is None


PROBES = """2026-05-21T06:40:12Z GET http://localhost:8000/health
HTTP/1.1 200 OK
date: Thu, 21 May 2026 06:40:12 GMT
content-length: 0

2026-05-21T06:40:42Z GET http://localhost:8000/health
HTTP/1.1 503 Service Unavailable
content-type: application/json

{"error":{"message":"EngineCore encountered an issue."}}
2026-05-21T06:41:12Z GET http://localhost:8000/health
curl: (7) Failed to connect to localhost port 8000: Connection refused
"""


def test_answers_of_probes_become_a_series_with_its_reasons(tmp_path: Path) -> None:
    path = written(tmp_path, PROBES, "health.txt")
    assert claimants(path)[0] == "health_probe"
    sink = load(health_probe, path)
    health = [row for row in sink.rows("sample") if row["name"] == "health"]
    assert [(row["value"], row["line"]) for row in health] == [(1, 2), (0, 7), (0, 12)]
    assert [row["ts_ns"] // 10**9 - 1779345612 for row in health] == [0, 30, 60]
    assert [f["line"] for f in sink.facts] == [7, 12]


def test_a_state_in_json_counts_where_the_name_tells_what_it_is(tmp_path: Path) -> None:
    text = '{"status": "unhealthy"}'
    assert "health_probe" not in claimants(written(tmp_path, text, "answer.json"))
    path = written(tmp_path, text, "readiness.json")
    assert claimants(path)[0] == "health_probe"
    assert [row["value"] for row in load(health_probe, path).rows("sample")] == [0]


def test_what_the_small_server_told_is_read_without_a_warning() -> None:
    folder = ROOT / "fixtures" / "serving-cold-prefix" / "artifacts"
    for module, name, table in ((prometheus, "metrics.prom.gz", "sample"), (otlp, "spans.jsonl.gz", "span_detail")):
        sink = load(module, folder / name)
        assert len(sink.rows(table)) > 50
        assert not sink.warnings
