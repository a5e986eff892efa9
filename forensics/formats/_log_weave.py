"""Tracebacks of several writers that no prefix tells apart: which frames are whose is said only where it is certain.

A second header before the first traceback's end may also mean that the first one's writer died. That lines of two were
mixed is shown by a line that can only be of the one below: a frame or an exception after the upper one's exception.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from forensics.artifact import Frame
from forensics.formats._log_blocks import Block

_MAX_FRAMES = 2048
_SAID_FRAMES = 8  # innermost ones, of which it is not known whose they are
_SAID_CHARACTERS = 400


@dataclass
class Weave:
    """Tracebacks of one process that were open at the same time, in the order of their headers."""

    blocks: list[Block] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # of all of them, in the order of the log
    ended: set[int] = field(default_factory=set)  # ids of blocks
    mixed: bool = False

    def __contains__(self, block: Block) -> bool:
        return any(block is member for member in self.blocks)

    def take(self, block: Block, frame: Frame | None = None) -> None:
        """Notes a frame, or the exception, of one of them."""
        later = self.blocks[next(i for i, member in enumerate(self.blocks) if member is block) + 1 :]
        self.mixed |= any(id(other) in self.ended for other in later)
        if frame is not None and len(self.frames) < _MAX_FRAMES:
            self.frames.append(frame)

    def end(self, block: Block) -> bool:
        """Notes that nothing more comes of a block; whether that holds for all of them now."""
        self.ended.add(id(block))
        return len(self.ended) == len(self.blocks)

    def settled(self) -> Iterator[Block]:
        """The blocks, each with the frames that are its own for certain."""
        if self.mixed:
            common = self._common_stack()
            for block in self.blocks:
                block.facts["interleaved"] = len(self.blocks)
                block.frames = list(common)
                if not common and self.frames:
                    block.facts["uncertain_frames"] = self._said()
        yield from self.blocks

    def _common_stack(self) -> list[Frame]:
        """The stack that all of them have, where each frame came once for each of them: mixing keeps the order."""
        counts = Counter(self.frames)
        n_whole = sum(block.exception is not None for block in self.blocks)
        same = n_whole == len(self.blocks) and set(counts.values()) == {n_whole}
        return list(dict.fromkeys(self.frames)) if same else []

    def _said(self) -> str:
        inner = list(dict.fromkeys(reversed(self.frames)))[:_SAID_FRAMES]
        return "; ".join(f"{f.file}:{f.line} in {f.function}" for f in inner)[:_SAID_CHARACTERS]
