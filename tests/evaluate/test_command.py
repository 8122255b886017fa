"""`genius eval` from the command line, with a tiny model in place of a real one."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius.cli import VERBS, app
from genius.data.mbeir import MBeir
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.errors import BadInput
from genius.evaluate.options import EvalOptions, FrontierOptions, GenerativeConfig
from genius.evaluate.provenance import commit
from genius.evaluate.run import best_score, split_encoder
from genius.evaluate.systems import (
    FAISS,
    GENERATIVE,
    OURS,
    SYSTEMS,
    SystemContext,
    make_systems,
    system_names,
)


@pytest.fixture
def genius(colours, tiny_model, tmp_path, monkeypatch):
    """Runs `genius eval` on the tiny root; errors of the user come out as exceptions."""
    monkeypatch.setattr("genius.evaluate.run.load_model", lambda name, device: tiny_model())
    monkeypatch.setenv("GENIUS_CACHE", str(tmp_path / "cache"))

    def run(*options, data=colours.path):
        arguments = ["eval", "--data", str(data), "--device", "cpu", *options]
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return run


def test_json_is_one_object_with_rows_and_mean(genius):
    out = genius("--systems", "exact,lookup+codes,lookup+vectors", "--format", "json")
    results = json.loads(out.stdout)
    assert [(r["system"], r["dataset"], r["task"], r["setting"]) for r in results["rows"]] == [
        (system, "colours", task, "universal")
        for system in ("exact", "lookup+codes", "lookup+vectors")
        for task in (0, 3)
    ]
    assert set(results["mean"]) == {"exact", "lookup+codes", "lookup+vectors"}
    assert results["mean"]["exact"]["hit@5"] >= results["mean"]["lookup+codes"]["hit@5"] - 1e-9
    assert results["mean"]["lookup+vectors"]["hit@5"] > 0.5
    assert "16 items, 16 queries" in out.stderr


@pytest.fixture
def beir(colours, tmp_path):
    """The tiny root in BEIR's layout."""
    data, root = MBeir(colours.path), tmp_path / "beir" / "colours"
    shutil.copytree(colours.path, root, ignore=shutil.ignore_patterns("query", "qrels", "cand_pool"))

    def record(id_, text, image, **more):
        path = None if image is None else image.relative_to(colours.path).as_posix()
        return json.dumps({"_id": id_, "text": text, "image": path, **more}) + "\n"

    queries = [
        record(q.id, q.text, q.image, instruction=data.instructions.chosen(q).sentence)
        for q in data.queries("test")
    ]
    (root / "queries.jsonl").write_text("".join(queries))
    (root / "items.jsonl").write_text("".join(record(i.id, i.text, i.image) for i in data.pool("test")))
    judged = [f"{q}\t{i}\t{g}\n" for q, items in data.qrels("test").items() for i, g in items.items()]
    (root / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return root


def test_a_benchmark_in_beirs_layout_gives_the_same_figures(genius, beir, tmp_path):
    runs, mteb = tmp_path / "runs", tmp_path / "mteb"
    expected = json.loads(genius("--systems", "exact", "--format", "json").stdout)["rows"]
    options = ("--systems", "exact", "--format", "json", "--runs", str(runs), "--mteb", str(mteb))
    found = json.loads(genius(*options, data=beir).stdout)["rows"]
    figures = ("dataset", "task", "queries", "pool_items", "hit@5", "recall@5", "mrr", "ndcg@10")
    assert [[row[name] for name in figures] for row in found] == [
        [row[name] for name in figures] for row in expected
    ]
    files = [word for file in sorted(runs.iterdir()) for word in ("--score", str(file))]
    scored = json.loads(genius(*files, "--format", "json", data=beir).stdout)["rows"]
    assert [row["hit@5"] for row in scored] == [row["hit@5"] for row in found]
    own = mteb / "results" / "genius__exact" / "model-1"
    task = json.loads((own / "colours_task0_universal.json").read_text())
    (scores,) = task["scores"]["test"]
    assert task["task_name"] == "colours_task0_universal"
    assert scores["main_score"] == scores["ndcg_at_10"] == pytest.approx(found[0]["ndcg@10"])
    assert scores["hit_rate_at_5"] == pytest.approx(found[0]["hit@5"])
    assert {"hf_subset", "languages"} <= scores.keys()
    assert {"dataset_revision", "mteb_version", "evaluation_time", "kg_co2_emissions"} <= task.keys()
    meta = json.loads((own / "model_meta.json").read_text())
    assert (meta["name"], meta["revision"]) == ("genius/exact", "model-1")


def test_mteb_reads_its_files(genius, tmp_path):
    mteb = pytest.importorskip("mteb", reason="mteb is not installed")
    found = json.loads(genius("--systems", "exact", "--format", "json", "--mteb", str(tmp_path)).stdout)[
        "rows"
    ]
    cache = mteb.ResultCache(tmp_path)
    table = cache.load_results(include_remote=False).to_dataframe(format="long")
    assert set(table["model_name"]) == {"genius/exact"}
    assert sorted(table["score"]) == pytest.approx(sorted(row["ndcg@10"] for row in found))
    for file in tmp_path.rglob("model_meta.json"):
        mteb.models.ModelMeta.model_validate_json_resolved(file.read_text())


def test_local_and_limit_and_markdown_and_table(genius):
    out = genius("--setting", "local", "--systems", "exact", "--limit", "4", "--format", "markdown")
    assert "| text → image | colours hit@5 |" in out.stdout
    assert "at most 4 queries" in out.stdout
    assert "exact" in genius("--systems", "exact").stdout


def test_runs_go_out_and_come_back_with_the_same_figures(genius, tmp_path):
    first = json.loads(
        genius("--systems", "exact", "--format", "json", "--runs", str(tmp_path / "runs")).stdout
    )
    files = sorted(map(str, (tmp_path / "runs").iterdir()))
    assert len(files) == 2
    scored = json.loads(genius("--score", files[0], "--score", files[1], "--format", "json").stdout)
    for a, b in zip(first["rows"], scored["rows"], strict=True):
        assert a["system"] == b["system"] == "exact"
        assert a["hit@5"] == b["hit@5"]
        assert a["ndcg@10"] == pytest.approx(b["ndcg@10"])
    table = genius("--score", files[0], "--format", "markdown").stdout
    assert "| bytes per item | measured | – |" in table  # a run file does not say what its system stores


def test_a_run_of_another_dataset_is_refused_and_a_partial_one_reported(genius, tmp_path):
    file = tmp_path / "x.trec"
    file.write_text("99:1 Q0 30:0 1 0.5 t\n")
    with pytest.raises(BadInput, match="none of its 1 queries is in this dataset"):
        genius("--score", str(file))
    file.write_text("30:0 Q0 30:0 1 0.5 t\n30:0 Q0 99:7 2 0.4 t\n99:1 Q0 30:0 1 0.5 t\n")
    (row,) = json.loads(genius("--score", str(file), "--format", "json").stdout)["rows"]
    assert row["faults"] == {"unanswered": 7, "foreign_queries": 1, "foreign_items": 1}
    assert (row["queries"], row["hit@1"]) == (8, 1 / 8)


def test_an_encoder_alone_stands_beside_the_model(genius, monkeypatch, tiny_encoder):
    monkeypatch.setattr("genius.evaluate.run.load_encoder", lambda *a: tiny_encoder("clip-weights"))
    out = genius("--systems", "exact,clip-sf=weights", "--format", "json")
    results = json.loads(out.stdout)
    assert list(results["mean"]) == ["exact", "clip-sf"]
    assert {row["fingerprint"] for row in results["rows"]} == {"model-1", "clip-weights"}


def test_how_codes_are_scored_is_chosen_on_val(colours, genius, monkeypatch):
    pytest.importorskip("faiss")
    found = json.loads(genius("--systems", "pq", "--format", "json").stdout)
    assert found["chosen_on_val"] == {}  # nothing to choose on: cosine
    assert found["systems"]["pq"]["score"] == "cosine"
    for file in [*colours.path.glob("query/test/*"), *colours.path.glob("qrels/test/*")]:
        copy = Path(str(file).replace("/test/", "/val/").replace("_test", "_val"))
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(file.read_text())
    for file in colours.path.glob("cand_pool/local/*"):
        file.with_name(file.name.replace("_cand", "_val_cand")).write_text(file.read_text())
    union = colours.path / "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    union.with_name("mbeir_union_val_cand_pool.jsonl").write_text(union.read_text())

    found = json.loads(genius("--systems", "exact,pq", "--format", "json").stdout)
    assert set(found["chosen_on_val"]) == {"pq"}
    by_score = found["chosen_on_val"]["pq"]
    assert set(by_score) == {"cosine", "product"}
    assert by_score["cosine"] == found["mean"]["pq"]["headline"]  # val is a copy of test here
    shown = genius("--systems", "pq", "--format", "markdown").stdout
    assert "pq: scored by cosine, chosen on val (cosine " in shown
    monkeypatch.setattr("genius.evaluate.run.best_score", lambda found: "product")
    other = json.loads(genius("--systems", "pq", "--format", "json").stdout)
    assert "score" not in other["systems"]["pq"]  # FAISS's own, the product


def test_the_better_score_wins():
    assert best_score({"cosine": 0.2, "product": 0.3}) == "product"
    assert best_score({"cosine": 0.3, "product": 0.3}) == "cosine"


def test_wrong_names_are_named(genius):
    with pytest.raises(BadInput, match="unknown system 'faster'"):
        genius("--systems", "faster")
    with pytest.raises(BadInput, match="genius needs a decoder"):
        genius("--systems", "genius")
    with pytest.raises(BadInput, match="clip-sf=FOLDER"):
        genius("--systems", "clip-sf")
    with pytest.raises(BadInput, match="no split 'val'"):
        genius("--systems", "exact", "--split", "val")
    with pytest.raises(BadInput, match="the data has none"):
        genius("--systems", "grace-numeric")


def test_sets_of_systems():
    assert system_names("ours") == list(OURS)
    assert system_names("all") == [*OURS, *FAISS]  # generative ones are asked for by name
    assert system_names("hnsw, exact,hnsw") == ["hnsw", "exact"]
    assert system_names("faiss,generative") == [*FAISS, *GENERATIVE]
    assert split_encoder("hnsw") is None


def test_every_system_can_be_made(tiny_model, tmp_path):
    model = tiny_model()
    model.decoder = None
    lookups = [name for name in SYSTEMS if name != "genius" and not name.startswith("decoder")]
    context = SystemContext(model, None, None, tmp_path)
    made = make_systems(lookups, context)
    assert [system.name for system in made] == lookups
    assert all(json.dumps(dict(s.settings)) for s in made if s.name not in GENERATIVE)


def test_no_system_has_two_names(tiny_model, tmp_path):
    model = tiny_model()
    model.decoder = Decoder(DecoderShape(8, (3, 16, 16), 1, 16, 1, 16, 32, prefix=2))
    made = make_systems(list(OURS), SystemContext(model, None, None, tmp_path))
    settings = [json.dumps({"kind": type(s).__name__, **s.settings}, sort_keys=True) for s in made]
    assert len(set(settings)) == len(made) == len(OURS)


@pytest.mark.parametrize(
    ("usual", "asked", "method", "beam"),
    [
        ("lookup", None, "lookup", 30),  # the product's default, as the model has it
        ("lookup", "generate", "generate", 50),  # a beam chosen for lookup is not the decoder's
        ("lookup", "lookup", "lookup", 30),
        ("both", None, "both", 30),
        ("both", "generate", "generate", 30),
        ("both", "lookup", "lookup", 200),
    ],
)
def test_options_come_from_the_model_unless_they_are_of_another_kind(
    tiny_model, tmp_path, usual, asked, method, beam
):
    model = tiny_model()
    model.search_defaults = {"method": usual, "beam": 30, "of_the_future": 1}
    options = SystemContext(model, None, None, tmp_path).options(asked, rerank="codes")
    assert (options.method, options.beam, options.rerank) == (method, beam, "codes")


def test_a_beam_can_be_set_for_searches_by_the_decoder_only(tiny_model, tmp_path):
    context = SystemContext(tiny_model(), None, None, tmp_path, beam=7)
    assert context.options("generate").beam == 7
    assert context.options("lookup").beam == 30
    assert context.options().beam == 30


def test_what_starts_at_random_is_made_for_each_seed(tiny_model, tmp_path):
    made = make_systems(
        ["exact", "pq", "lookup+codes"], SystemContext(tiny_model(), None, None, tmp_path), seeds=3
    )
    assert [system.name for system in made] == ["exact", "pq", "pq", "pq", "lookup+codes"]
    assert [system.settings["seed"] for system in made[1:4]] == [0, 1, 2]


def test_results_are_saved_with_command_and_commit(genius, tmp_path, monkeypatch):
    monkeypatch.setenv("GENIUS_COMMIT", "0123abc")
    commit.cache_clear()
    monkeypatch.setattr("sys.argv", ["genius", "eval", "--data", "/a/b", "--systems", "exact, pq"])
    file = tmp_path / "kept" / "results.json"
    out = genius("--systems", "exact", "--format", "json", "--save", str(file))
    about = {"command": "genius eval --data BENCH --systems 'exact, pq'", "commit": "0123abc"}
    assert json.loads(file.read_text()) == about | json.loads(out.stdout)
    commit.cache_clear()


def test_help_is_light():
    program = (
        "import sys; import genius.cli; print(sorted({'torch', 'faiss', 'matplotlib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_has_more_than_a_screen_of_options(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "120", "TERMINAL_WIDTH": "120"})
    assert out.exit_code == 0
    assert len(out.output.splitlines()) <= 50, out.output


def test_defaults_of_the_command_line_are_those_of_the_code():
    """Every option that is also a field of an options class has its default."""
    fields = {
        "eval": asdict(EvalOptions()),
        "ablate": asdict(EvalOptions()),
        "report": asdict(EvalOptions()) | asdict(FrontierOptions()),
        "bench": asdict(FrontierOptions()),
    }
    renamed = {"train_limit": GenerativeConfig().queries, "train_steps": GenerativeConfig().steps}
    for verb, known in fields.items():
        parameters = inspect.signature(VERBS[verb]).parameters
        shared = [name for name in parameters if name in known | renamed and name != "systems"]
        assert len(shared) >= 4, verb
        for name in shared:
            value = (known | renamed)[name]
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            assert parameters[name].default == shown, (verb, name)
