"""The stage that converts an instruction set, over small local files with the columns of the published ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from artifacts.build import Produce, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.config import Config, DecontaminationConfig, InstructionSource
from nanocode.conversation import from_json, render
from nanocode.data import file_sources
from nanocode.data.decontaminate import EvaluationItem, items_digest
from nanocode.data.documents import SourceError
from nanocode.stopping import Interrupted
from nanocode.tokenizer import Tokenizer
from steps import convert_instructions as stage
from steps.pipeline import Run
from steps.pipeline.survey import Survey, survey, walk

NAMES = (
    "apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel", "iris", "juniper", "kiwi", "lemon",
    "mango", "nettle", "olive", "peach",
)  # fmt: skip
CONTEXT = 1_200


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train([answer(name, number) for number, name in enumerate(NAMES)], 280).save(folder / "tokenizer.json")
    return folder


def answer(name: str, number: int) -> str:
    body = "".join(f"    {other}_{name} = {number} * {place}\n" for place, other in enumerate(NAMES[:4]))
    return f"Here is {name}.\n```python\ndef {name}():\n{body}    return {number}\n```\nIt returns {number} for {name}."


def oss_rows(count: int = len(NAMES)) -> list[dict[str, Any]]:
    return [
        {"id": number, "instruction": f"Write a function {name}.", "response": answer(name, number), "sha1": "x"}
        for number, name in enumerate(NAMES[:count])
    ]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def source(glob: Path, **changes: Any) -> InstructionSource:
    values = {"name": "oss", "kind": "self_oss_instruct", "licence": "ODC-By-1.0", "glob": str(glob), **changes}
    return InstructionSource.model_validate(values)


def run(
    source: InstructionSource, tokenizer: Path, output: Path, context: int = CONTEXT, **changes: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    inputs = stage.Inputs(tokenizer, output, output.parent, context, state=changes.pop("state", None))
    decontamination = changes.pop("decontamination", DecontaminationConfig())
    report = stage.run(source, decontamination, inputs, lambda line: None, **changes)
    assert json.loads((output / "report.json").read_text()) == report
    return report, [json.loads(line) for line in (output / "conversations.jsonl").open(encoding="utf-8")]


def test_every_row_is_a_conversation_or_counted_under_a_reason(tokenizer: Path, tmp_path: Path) -> None:
    rows = oss_rows()
    rows += [
        rows[0],  # again
        {"instruction": "Hello?", "response": "Hi."},
        {
            "instruction": "Write much.",
            "response": answer("much", 1).replace("return 1\n", "return 1\n" + "# pad\n" * 190),
        },
    ]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    path.write_text(path.read_text() + "{torn\n")
    report, kept = run(source(path), tokenizer, tmp_path / "out")
    assert report["dropped"] == {
        "exact_duplicate": 1, "longer than the context": 1, "no code block": 1, "unparsable": 1
    }  # fmt: skip
    assert report["gates"] == {
        "structure": 0, "execution": 0, "language": 0, "decontamination": 0, "length": 1, "duplicates": 1, "secrets": 0,
        "conversion": 2,
    }  # fmt: skip
    assert (report["rows"], report["kept"], len(kept)) == (20, 16, 16)
    assert report["variants"] == {"create": 16}
    assert report["examples"]["unparsable"] == "x.jsonl#19"


def test_rows_are_what_sft_reads_and_say_where_they_come_from(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", oss_rows(3))
    report, kept = run(source(path), tokenizer, tmp_path / "out")
    lengths = [render(from_json(row["messages"]), Tokenizer.load(tokenizer / "tokenizer.json")) for row in kept]
    assert report["tokens"] == sum(len(each.ids) for each in lengths)
    assert report["trained_tokens"] == sum(sum(each.mask) for each in lengths)
    row = min(kept, key=lambda row: row["id"])
    assert (row["id"], row["register"], row["family"], row["variant"]) == ("oss/x.jsonl#0", "stock", "oss", "create")
    assert row["provenance"] == {
        "set": "oss", "revision": None, "row": "x.jsonl#0", "row_id": "0", "licence": "ODC-By-1.0",
        "converter": "self_oss_instruct", "notes": {},
    }  # fmt: skip


def test_parquet_and_jsonl_give_the_same_conversations(tokenizer: Path, tmp_path: Path) -> None:
    exchange = [
        {
            "id": f"p{number}",
            "messages": [
                {"role": "user", "content": "Write."},
                {"role": "assistant", "content": answer(name, number)},
            ],
        }
        for number, name in enumerate(NAMES)
    ]
    pq.write_table(pa.Table.from_pylist(exchange), tmp_path / "x.parquet")
    write_jsonl(tmp_path / "x.jsonl", exchange)
    kept = {}
    for ending in ("jsonl", "parquet"):
        chosen = source(tmp_path / f"x.{ending}", kind="tulu_code")
        kept[ending] = run(chosen, tokenizer, tmp_path / ending)[1]
    by_row = [{row["provenance"]["row_id"]: row["messages"] for row in rows} for rows in kept.values()]
    assert by_row[0] == by_row[1]
    assert len(by_row[0]) == len(NAMES)


def test_near_duplicates_secrets_and_evaluation_texts_stay_out(tokenizer: Path, tmp_path: Path) -> None:
    rows = oss_rows(4)
    rows.append(rows[1] | {"response": rows[1]["response"] + " Indeed."})
    rows[2]["response"] += f" Token ghp_{'a1B2' * 9}."
    leak = "count how many of the given numbers are larger than every number that stands before them in the list"
    rows[3]["instruction"] += f" It should {leak}."
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    (tmp_path / "evaluation.jsonl").write_text(json.dumps({"text": leak}) + "\n")
    digest = items_digest([EvaluationItem("leaky/evaluation.jsonl#0", leak)])
    sets = [{"name": "leaky", "glob": str(tmp_path / "evaluation.jsonl"), "sha256": digest}]
    decontamination = DecontaminationConfig.model_validate({"sets": sets})
    report, kept = run(source(path), tokenizer, tmp_path / "out", decontamination=decontamination)
    assert report["dropped"] == {"contaminated": 1, "near_duplicate": 1}
    assert (report["touched_items"], report["filters"]) == (1, {"github_token": 1})
    assert "ghp_" not in json.dumps(kept) and "Token <KEY>." in json.dumps(kept)
    dropping = source(path, filters={"github_token": "drop"})
    assert run(dropping, tokenizer, tmp_path / "out")[0]["gates"]["secrets"] == 1


def test_max_rows_ends_the_reading(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", oss_rows())
    report, kept = run(source(path, max_rows=5), tokenizer, tmp_path / "out")
    assert (len(kept), report["kept"], report["rows"]) == (5, 5, 5)


def test_a_missing_column_is_named_with_those_there_are(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"problem": "p", "instruction": "i"}])
    with pytest.raises(SourceError, match=r"'oss' \(kind 'self_oss_instruct'\): x.jsonl#0 has no column 'response'; "
                                          r"there are: instruction, problem"):  # fmt: skip
        run(source(path), tokenizer, tmp_path / "out")


def test_a_file_that_is_no_table_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("def f(): pass")
    with pytest.raises(SourceError, match=r"x\.txt is no table"):
        run(source(tmp_path / "x.txt"), tokenizer, tmp_path / "out")


def test_a_set_of_which_nothing_is_left_says_why(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"instruction": "Hello?", "response": "Hi."}])
    with pytest.raises(stage.NoInstructions, match=r"'oss' gave no conversation; dropped: \{'no code block': 1\}"):
        run(source(path), tokenizer, tmp_path / "out")


def test_a_stopped_stage_goes_on_where_it_was_and_ends_with_the_same_bytes(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sources, "BLOCK_BYTES", 1_000)
    rows = oss_rows()
    path = write_jsonl(tmp_path / "x.jsonl", [*rows, rows[0], {"instruction": "Hello?", "response": "Hi."}])
    whole, _ = run(source(path), tokenizer, tmp_path / "whole")
    saved: list[dict[str, Any]] = []
    output = tmp_path / "halved"
    state, attempts = None, 0
    while not (output / "report.json").exists():
        attempts += 1
        try:
            run(
                source(path), tokenizer, output, state=state,
                save=lambda rows, state: saved.append(json.loads(json.dumps(state))),
                stop_requested=lambda: len(saved) % 2 == 0,
            )  # fmt: skip
        except Interrupted:
            state = saved[-1]
            with (output / "conversations.jsonl").open("a") as torn:
                torn.write('{"id": "written after the save')
    assert attempts > 2
    for name in ("conversations.jsonl", "report.json"):
        assert (output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert whole["rows"] == len(rows) + 2


def with_sets(sets: list[dict[str, Any]]) -> Config:
    values = {
        "name": "show",
        "data": {"sources": [{"name": "docs", "kind": "python_docs"}]},
        "model": {"depth": 1},
        "constitution": {"sft_tasks": 4, "preference_tasks": 4, "sources": sets},
    }
    return Config.model_validate(values)


@dataclass(frozen=True)
class Noted(Run):
    """A run that only notes its stages."""

    stages: list[Stage] = field(default_factory=list)

    def make(self, stage: Stage, produce: Produce) -> str:
        del produce
        self.stages.append(stage)
        return stage.name


def stages(config: Config) -> dict[str, Stage]:
    run = Noted(config, None, RunInfo("", "", ""))  # type: ignore[arg-type]  # asked for nothing
    walk(run, lambda _, name: f"shards-{name}")
    return {each.name.partition("/")[2]: each for each in run.stages}


def test_without_sets_no_stage_and_no_key_knows_of_them(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", oss_rows(2))
    set_of = {"name": "oss", "kind": "self_oss_instruct", "licence": "MIT", "glob": str(path), "weight": 0.5}
    without, having = stages(with_sets([])), stages(with_sets([set_of]))
    assert set(having) - set(without) == {"instructions-oss", "instructions-source-oss"}
    assert set(without["sft"].config) == {"sft", "seed"}
    assert set(without["sft"].inputs) == {"base", "tokenizer", "conversations"}
    assert having["sft"].config["instruction_weights"] == {"oss": 0.5}
    assert having["sft"].inputs["instructions.oss"] == "show/instructions-oss"
    assert "weight" not in having["instructions-oss"].config["source"]
    changed = {name for name in without if without[name] != having[name]}
    assert changed == {"sft"}


def test_a_set_that_is_not_there_blocks_its_own_stage_in_a_survey(tmp_path: Path) -> None:
    set_of = {"name": "oss", "kind": "messages", "licence": "MIT", "glob": str(tmp_path / "none-*.jsonl")}
    repository = Repository(open_store(f"file:{tmp_path / 'store'}", tmp_path))
    outlooks = survey(Survey(with_sets([set_of]), repository, RunInfo("", "", "")))
    (blocked,) = [outlook for outlook in outlooks if outlook.state == "blocked"]
    assert (blocked.step, blocked.name) == ("convert_instructions", "show/instructions-oss")
    assert "none-*.jsonl" in blocked.obstacle


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"glob": None}, "needs either a glob or a dataset"),
        ({"dataset": "o/n"}, "needs either a glob or a dataset"),
        ({"glob": None, "dataset": "o/n"}, "a dataset needs its revision"),
        ({"revision": "5" * 40}, "a dataset needs its revision"),
    ],
)
def test_a_set_is_in_one_place(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {"name": "x", "kind": "messages", "licence": "MIT", "glob": "*.jsonl", **changes}
    with pytest.raises(ValidationError, match=message):
        InstructionSource.model_validate({key: value for key, value in values.items() if value is not None})


def test_a_leak_in_the_code_that_is_only_read_is_found(tokenizer: Path, tmp_path: Path) -> None:
    leak = "".join(f"    {name} = numbers[{place}]\n" for place, name in enumerate(NAMES[:9]))
    before = f"def pick(numbers):\n{leak}    return apple\n"
    after = before.replace("return apple", "return banana")
    row = {"instruction": f"Fix it.\n```python\n{before}```", "output": f"```python\n{after}```"}
    path = write_jsonl(tmp_path / "x.jsonl", [row])
    chosen = source(path, kind="evol_codealpaca")
    report, _ = run(chosen, tokenizer, tmp_path / "out")
    assert report["variants"] == {"change": 1}
    (tmp_path / "evaluation.txt").write_text(leak)
    digest = items_digest([EvaluationItem("leaky/evaluation.txt#0", leak)])
    sets = [{"name": "leaky", "glob": str(tmp_path / "evaluation.txt"), "sha256": digest}]
    decontamination = DecontaminationConfig.model_validate({"sets": sets})
    with pytest.raises(stage.NoInstructions, match="contaminated"):
        run(chosen, tokenizer, tmp_path / "out", decontamination=decontamination)
