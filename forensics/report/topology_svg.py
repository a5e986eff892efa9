"""Draws how GPUs reach each other: a cell for each pair, filled the more the closer they are, with its word."""

from __future__ import annotations

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import DeviceTopology
from forensics.report.svg import element, escaped
from forensics.report.text import plural

_LEFT, _TOP = 70.0, 26.0
_CELL, _ROW = 58.0, 26.0
# https://docs.nvidia.com/deploy/nvidia-smi/index.html
WORDS = {
    "NV": "NVLink",
    "C2C": "a chip-to-chip link",
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "the host's PCIe bridge",
    "NODE": "the PCIe bridges of one processor",
    "SYS": "the interconnect between processors",
    "SOC": "the interconnect between processors",
}
_SHADES = {"NV": "h1", "C2C": "h1", "PIX": "h0", "PXB": "h0"}


def topology_exhibit(view: DeviceTopology, index: int = 0) -> Exhibit | None:
    """None without a pair."""
    pairs = [
        (a, b, view.paths[i][j])
        for i, a in enumerate(view.devices)
        for j, b in enumerate(view.devices)
        if i < j and view.paths[i][j]
    ]
    if not pairs:
        return None
    counts: dict[str, int] = {}
    for _, _, path in pairs:
        counts[path] = counts.get(path, 0) + 1
    said = "; ".join(f"{n:,} by {path} ({_word(path)})" for path, n in sorted(counts.items(), key=lambda c: -c[1]))
    rows = [[a, b, path, _word(path)] for a, b, path in pairs]
    return Exhibit(
        id=f"topology-{index}",
        title="How the GPUs reach each other",
        lead=f"Of {plural(len(pairs), 'pair')}, {said}.",
        svg=_svg(view, index),
        twin=twin(["GPU", "GPU", "Path", "Through"], rows),
        notes=[f"{plural(view.n_hidden, 'more GPU')} not drawn."] if view.n_hidden else [],
        about=("hardware-p2p-path", "hardware-nvlink", "host-affinity"),
    )


def _kind(path: str) -> str:
    return "NV" if path.startswith("NV") else path


def _word(path: str) -> str:
    kind = _kind(path)
    links = path.removeprefix("NV")
    known = WORDS.get(kind, "a path of its own kind")
    return f"{plural(int(links), 'link')} of NVLink" if kind == "NV" and links.isdigit() else known


def _svg(view: DeviceTopology, index: int) -> str:
    parts = []
    for i, name in enumerate(view.devices):
        x, y = _LEFT + i * _CELL, _TOP + i * _ROW
        parts.append(element("text", escaped(name), x=x + _CELL / 2, y=_TOP - 9, text_anchor="middle", class_="tick"))
        parts.append(element("text", escaped(name), x=_LEFT - 10, y=y + 17, text_anchor="end", class_="lane-name"))
        parts += [_cell(view, i, j) for j in range(len(view.devices)) if view.paths[i][j]]
        if view.near[i]:
            at = _LEFT + len(view.devices) * _CELL + 14
            parts.append(element("text", escaped(f"near processors {view.near[i]}"), x=at, y=y + 17, class_="sub"))
    ident = f"topology-{index}-title"
    return element(
        "svg",
        element("title", "Paths between GPUs", id=ident) + "".join(parts),
        class_="plot topology",
        viewBox=f"0 0 1100 {_TOP + len(view.devices) * _ROW + 6:g}",
        role="img",
        aria_labelledby=ident,
    )


def _cell(view: DeviceTopology, i: int, j: int) -> str:
    path = view.paths[i][j]
    x, y = _LEFT + j * _CELL, _TOP + i * _ROW
    told = element("title", escaped(f"{view.devices[i]} and {view.devices[j]}: {path}, {_word(path)}"))
    shade = _SHADES.get(_kind(path), "op-box")
    box = element("rect", x=x + 1, y=y + 1, width=_CELL - 2, height=_ROW - 2, class_=shade)
    word = element("text", escaped(path, 12), x=x + _CELL / 2, y=y + 17, text_anchor="middle", class_="lane-name")
    return element("g", told + box + word)
