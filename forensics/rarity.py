"""Where to look in logs of a failed job that name no error: the line that is unlike all others, near the end.

A line's kind is its words, without numbers and identifiers. Programs repeat a few kinds thousands of times, so one that
occurs once in a long log and late in it is worth a look. It is an indication: nothing tells that it is wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import duckdb

from forensics.artifact import Source
from forensics.citations import Citations
from forensics.finding import Anomaly
from forensics.formats._log_forms import forms_of
from forensics.formats._log_lines import read_blocks

# Of a form, whose digits are all 7: numbers with exponents; bars of progress and whatever is no letter.
_EXPONENT = re.compile(rb"\b7+\.?7*e[-+]?7+")
_NO_LETTERS = re.compile(rb"(?:\xe2\x96[\x80-\x9f]|[^A-Za-z\x80-\xff])+")
_MAX_LOGS = 64
_MAX_BYTES = 64 << 20  # of one log
_LEAST_LINES = 50  # below, every line may be the only one of its kind
_LEAST_REPEATED = 0.6  # of the lines that must be of a kind that occurs three times or more
_TAIL = 60  # lines before the end
_MAX_SINGLE = 5  # more in the tail, and the log says something new all the time
_LEAST_WORDS = 3


def rarest_line(con: duckdb.DuckDBPyConnection, sources: Sequence[Source], citations: Citations) -> Anomaly | None:
    """The first line that is the only one of its kind near the end of a log; of several logs that of the fewest such.

    For jobs that failed and of which nothing else is known. The message says how weak that is.
    """
    rows = con.execute(
        """
        SELECT a.id, CASE WHEN count(DISTINCT p.rank) = 1 THEN min(p.rank) END
        FROM artifact AS a
        LEFT JOIN (SELECT DISTINCT artifact_id, proc_id FROM coverage) AS c ON c.artifact_id = a.id
        LEFT JOIN proc AS p ON p.id = c.proc_id
        WHERE a.format = 'log' AND a.bytes <= ? GROUP BY a.id ORDER BY a.id LIMIT ?
        """,
        [_MAX_BYTES, _MAX_LOGS],
    ).fetchall()
    found = [(*place, artifact, rank) for artifact, rank in rows if (place := _rarest(sources[artifact])) is not None]
    if not found:
        return None
    _, line, n_lines, artifact, rank = min(found)
    evidence = citations.cite({"artifact_id": artifact, "line": line})
    if evidence is None:
        return None
    message = (
        f"{' '.join(evidence.text.split())[:300]} (of {n_lines} lines the only one of its kind near the end: "
        "an indication of where to look, not a cause)"
    )
    return Anomaly(message, rank, None, evidence, weak=True)


def _rarest(source: Source) -> tuple[int, int, int] | None:
    """How many lines near the end are the only ones of their kind, the first of them, and the number of lines."""
    counts: Counter[bytes] = Counter()
    tail: list[tuple[int, bytes, str]] = []
    try:
        with source.open() as stream:
            for block in read_blocks(stream):
                forms = forms_of(block.pieces)
                kinds = [_NO_LETTERS.sub(b" ", _EXPONENT.sub(b"", form)) for form in forms.dictionary.to_pylist()]
                codes = forms.indices.to_pylist()
                filled = [index for index, code in enumerate(codes) if kinds[code].strip()]
                counts.update(kinds[codes[index]] for index in filled)
                tail += [(block.number(index), kinds[codes[index]], block[index].text) for index in filled[-_TAIL:]]
                del tail[:-_TAIL]
    except OSError:
        return None
    n_lines = counts.total()
    if n_lines < _LEAST_LINES or sum(n for n in counts.values() if n >= 3) < _LEAST_REPEATED * n_lines:
        return None
    single = [number for number, kind, text in tail if counts[kind] == 1 and len(text.split()) >= _LEAST_WORDS]
    return (len(single), single[0], n_lines) if 0 < len(single) <= _MAX_SINGLE else None
