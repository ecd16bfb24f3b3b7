"""How often the diagnosis names the fault: forty faults of the catalogue, implanted in the fast engine.

    python tests/meta/diagnosis.py

Each is diagnosed on golden:adversarial from every tap, from the residual stream, and from the logits alone, in float32;
from every tap in bfloat16. Then ten pairs of faults, and five that nobody has made so far. Half an hour on two cores.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from threadpoolctl import threadpool_limits

from gander.conformance.diagnosis import Diagnosis, diagnose
from gander.conformance.mutants import MUTANTS
from gander.conformance.tracing import trace
from gander.golden import open_model
from gander.traces import Trace, op_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from meta.implants import IMPLANTS, PAIRS, PARTS, TOKENS, UNKNOWN, implanted

STREAM = {"emb", "mid", "out", "logits"}
SHOWN = {
    "every tap": lambda name: True,
    "residual stream": lambda name: op_of(name) in STREAM,
    "logits": lambda name: name == "logits",
}
KINDS = (("every tap", "float32"), ("residual stream", "float32"), ("logits", "float32"), ("every tap", "bfloat16"))
BY_ID = {implant.id: implant for implant in (*IMPLANTS, *UNKNOWN)}

Job = tuple[tuple[str, ...], str, str]  # the implants, what is shown, the dtype
Verdict = tuple[list[str], list[list[str]], str]  # the ids that are named, those of the ranking's first, and the tap


def shown(ids: tuple[str, ...], what: str, dtype: str) -> Trace:
    """The trace of the fast engine with these implants."""
    edits = tuple(edit for id in ids for edit in BY_ID[id].edits)
    with tempfile.TemporaryDirectory() as folder, implanted(edits, Path(folder), "implanted") as module:
        whole = trace(module.Engine(dtype=dtype), open_model("golden:adversarial"), TOKENS, PARTS)
    return replace(whole, tensors={name: value for name, value in whole.tensors.items() if SHOWN[what](name)})


def run(job: Job) -> Diagnosis:
    """One diagnosis. Mutants hold functions, which no process can send: only their ids come back."""
    with threadpool_limits(1):
        return diagnose(shown(*job), open_model("golden:adversarial"), MUTANTS)


def verdict(job: Job) -> Verdict:
    """What is said of it."""
    found = run(job)
    ranking = [[mutant.id for mutant in candidate.mutants] for candidate in found.ranking[:3]]
    return [mutant.id for mutant in found.found.mutants] if found.found else [], ranking, op_of(found.where)


def jobs() -> Iterator[Job]:
    """Everything that is asked."""
    for what, dtype in KINDS:
        yield from (((implant.id,), what, dtype) for implant in IMPLANTS)
    yield from ((pair, "every tap", "float32") for pair in PAIRS)
    yield from (((implant.id,), "every tap", "float32") for implant in UNKNOWN)


def main() -> None:
    """Ask everything, print rates and confusions."""
    asked, console = list(jobs()), Console(stderr=True)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        verdicts = list(track(pool.map(verdict, asked), "diagnosing", len(asked), console=console))
    show(dict(zip(asked, verdicts, strict=True)), Console(width=110))


def show(answers: Mapping[Job, Verdict], console: Console) -> None:
    """Rates and confusions."""
    table = Table("shown", "dtype", "named", "first", "among three", box=None)
    confused = Table("fault", "shown", "dtype", "taken for", box=None)
    for what, dtype in KINDS:
        of_kind = {implant.id: answers[(implant.id,), what, dtype] for implant in IMPLANTS}
        named = sum(found == [id] for id, (found, _, _) in of_kind.items())
        first = sum(ranking[:1] == [[id]] for id, (_, ranking, _) in of_kind.items())
        three = sum([id] in ranking for id, (_, ranking, _) in of_kind.items())
        table.add_row(what, dtype, *(f"{n}/{len(of_kind)}" for n in (named, first, three)))
        for id, (found, ranking, _) in of_kind.items():
            if ranking[:1] != [[id]]:
                confused.add_row(id, what, dtype, " + ".join(ranking[0]) + ("" if found else " (not named)"))
    console.print(table)
    console.print(confused)
    both = {pair: answers[pair, "every tap", "float32"][0] for pair in PAIRS}
    console.print(
        f"pairs: both named in {sum(sorted(pair) == sorted(found) for pair, found in both.items())}/{len(PAIRS)}"
    )
    for pair, found in both.items():
        if sorted(pair) != sorted(found):
            console.print(f"  {' + '.join(pair)} taken for {' + '.join(found) or 'nothing known'}")
    new = {implant: answers[(implant.id,), "every tap", "float32"] for implant in UNKNOWN}
    right = sum(not found and where == implant.where for implant, (found, _, where) in new.items())
    console.print(f"unknown faults: none of the known ones and the right tap in {right}/{len(UNKNOWN)}")
    for implant, (found, _, where) in new.items():
        if found or where != implant.where:
            console.print(f"  {implant.id}: {' + '.join(found) or 'nothing known'} at {where}")


if __name__ == "__main__":
    main()
