"""Printed TorchScript graphs and printed cache entries of Dynamo; the texts are what torch 2.13 printed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import MemorySink, load

from forensics.artifact import Head
from forensics.discovery import discover
from forensics.errors import ArtifactError
from forensics.formats import dynamo_cache, formats, torchscript_ir

SCRIPTED = """graph(%self : __torch__.Net,
      %x.1 : Tensor,
      %n.1 : int):
  %28 : NoneType = prim::Constant()
  %7 : int = prim::Constant[value=2]() # /job/t.py:7:15
  %l : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name="l"](%self)
  %y.1 : Tensor = prim::CallMethod[name="forward"](%l, %x.1) # /job/t.py:6:12
  %8 : bool = aten::gt(%n.1, %7) # /job/t.py:7:11
  %y.25 : Tensor = prim::If(%8) # /job/t.py:7:8
    block0():
      %y.5 : Tensor = aten::relu(%y.1) # /job/t.py:8:16
      -> (%y.5)
    block1():
      -> (%y.1)
  %29 : Tensor = aten::sum(%y.25, %28) # /job/t.py:11:15
  return (%29)
"""
TRACED = """graph(%self.1 : __torch__.T,
      %x : Float(3, 4, strides=[4, 1], requires_grad=0, device=cpu)):
  %l : __torch__.torch.nn.modules.linear.___torch_mangle_0.Linear = prim::GetAttr[name="l"](%self.1)
  %26 : Tensor = prim::CallMethod[name="forward"](%l, %x)
  %16 : int = prim::Constant[value=3]() # /job/t.py:18:0
  %17 : int = prim::Constant[value=4]() # /job/t.py:18:0
  %18 : int[] = prim::ListConstruct(%16, %17)
  %19 : Float(3, 4, strides=[4, 1], requires_grad=1, device=cpu) = aten::view(%26, %18) # /job/t.py:18:0
  %20 : Float(3, 4, strides=[4, 1], requires_grad=1, device=cpu) = aten::relu(%19) # /job/t.py:18:0
  return (%20)
"""
ENTRIES = """compile_id 0/2 code <code object f at 0x7f9451322a60, file "/job/t.py", line 22>

TREE_GUARD_MANAGER:
+- RootGuardManager
| +- GLOBAL_STATE: ___check_global_state() against {"allow_bf16_reduce":0}
| +- DEFAULT_DEVICE: utils_device.CURRENT_DEVICE == None                  # _dynamo/output_graph.py:1122 in init_ambient
| +- GuardManager: source=L['k'], accessed_by=FrameLocalsGuardAccessor(key='k', framelocals_idx=1), type=<class 'int'>
| | +- TYPE_MATCH: ___check_type_id(L['k'], 140275624541408)  # return (x*k).sin()  # /job/t.py:23 in f (HINT: type int)
+- LAMBDA_GUARD: 2 <= L['x'].size()[0]  # return (x*k).sin()  # /job/t.py:23 in f (user code shown is first use)


TREE_GUARD_MANAGER:
+- RootGuardManager
| +- GuardManager: source=L['k'], accessed_by=FrameLocalsGuardAccessor(key='k', framelocals_idx=1), type=<class 'int'>
| | +- EQUALS_MATCH: L['k'] == 1                                          # return (x*k).sin()  # /job/t.py:23 in f
"""


def events(sink: MemorySink) -> list[dict[str, Any]]:
    return sink.rows("compile_event")


def read(module: ModuleType, text: str, folder: Path) -> MemorySink:
    path = folder / "dump.txt"
    path.write_text(text)
    (found,) = discover(path, folder / "work")
    assert found.format == module.__name__.rpartition(".")[2]
    return load(module, path)


def test_a_scripted_graph_is_one_compilation_without_specialised_values(tmp_path: Path) -> None:
    (only,) = events(read(torchscript_ir, SCRIPTED, tmp_path))
    assert (only["kind"], only["name"]) == ("compile", "__torch__.Net")
    assert only["reason"] == "TorchScript graph, scripted: 8 operators"


def test_values_of_the_run_that_was_traced_are_told_with_the_line_that_made_them(tmp_path: Path) -> None:
    sink = read(torchscript_ir, TRACED, tmp_path)
    baked, graph = events(sink)
    assert baked["reason"] == "constants 3, 4 of the traced run are given to aten::view"
    assert graph["reason"].startswith("TorchScript graph, traced with the sizes of one run")
    (frame,) = sink.rows("stack")
    assert (frame["id"], frame["file"], frame["line"]) == (baked["stack_id"], "/job/t.py", 18)
    assert [place["line"] for place in sink.rows("position")] == [8, 1]


def test_each_tree_of_guards_is_an_entry_of_the_cache(tmp_path: Path) -> None:
    sink = read(dynamo_cache, ENTRIES, tmp_path)
    entries = [event for event in events(sink) if event["kind"] == "guards"]
    assert [(e["compile_id"], e["name"]) for e in entries] == [("0/2", "f"), (None, "f")]
    assert entries[1]["reason"] == "L['k'] == 1"
    guards = [event["reason"] for event in events(sink) if event["kind"] == "guard"]
    assert len(guards) == 5 and "TYPE_MATCH: ___check_type_id(L['k'], 140275624541408)" in guards
    (frame,) = sink.rows("stack")
    assert (frame["function"], frame["file"], frame["line"]) == ("f", "/job/t.py", 23)


@pytest.mark.parametrize(("module", "text"), [(torchscript_ir, TRACED), (dynamo_cache, ENTRIES)])
def test_a_dump_that_is_cut_anywhere_keeps_what_came_before(module: ModuleType, text: str, tmp_path: Path) -> None:
    counts = []
    for size in range(0, len(text), 7):
        path = tmp_path / "cut.txt"
        path.write_text(text[:size])
        try:
            counts.append(len(events(load(module, path))))
        except ArtifactError:
            counts.append(0)
    assert counts == sorted(counts)
    assert counts[-1] >= len(events(read(module, text, tmp_path))) - 1


@pytest.mark.parametrize(
    "text",
    ["", "loss 0.5\n", "graph(a, b):\n  nothing\n", "digraph {\n}\n", "TREE_GUARD_MANAGER:\n", "INFO guard passed\n"],
)
def test_other_text_is_neither(text: str) -> None:
    head = Head("x.txt", text.encode(), whole=True)
    assert torchscript_ir.recognise(head) == dynamo_cache.recognise(head) == 0


def test_both_formats_are_listed() -> None:
    assert {"torchscript_ir", "dynamo_cache"} <= set(formats())
