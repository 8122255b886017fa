"""The published columns agree with what the paper itself says about them."""

from __future__ import annotations

import pytest

from genius.evaluate.paper import columns, mbeir_rows, paper, table

TABLE_1, TABLE_2, TABLE_8, TABLE_9 = map(
    table, ("Table 1", "Table 2", "supplement Table 8", "supplement Table 9")
)


def column(columns, name):
    return next(c for c in columns if c.name == name)


@pytest.mark.parametrize("published", TABLE_9, ids=lambda c: c.name)
def test_table_9_agrees_with_its_printed_averages(published):
    assert published.mean() == pytest.approx(published.average, abs=0.051)


@pytest.mark.parametrize("name", ["GENIUS", "GENIUS^R"])
def test_main_and_supplement_agree_on_genius(name):
    assert column(TABLE_2, name).values == column(TABLE_9, name).values
    assert column(TABLE_1, name).values == column(TABLE_8, name).values


@pytest.mark.parametrize(("first", "second"), [(TABLE_2, TABLE_9), (TABLE_1, TABLE_8)])
def test_every_disagreement_of_two_tables_has_a_remark(first, second):
    for mine in first:
        theirs = column(second, mine.name)
        for row in mine.values.keys() & theirs.values.keys():
            if mine.values[row] != theirs.values[row]:
                assert mine.remark(row), (mine.name, row)


def test_the_fashioniq_misprint_is_marked_wherever_it_is_printed():
    row = ("fashioniq", 7)
    for printed in (TABLE_2, TABLE_9):
        genius = column(printed, "GENIUS")
        assert genius.values[row] == 18.9
        assert "misprint" in genius.remark(row)
    assert column(TABLE_9, "CLIP-SF").remark(row) is None
    assert column(TABLE_1, "GENIUS").remark(row) is None


def test_the_text_to_image_tables_agree_where_they_overlap():
    lines = paper()["text_to_image"]
    by_name = {
        (line["name"], line["dataset"], line["trained_on"]): line["values"]
        for line in lines
        if line["table"] == "supplement Table 7"
    }
    for line in (line for line in lines if line["table"] == "Table 3"):
        name = line["name"].replace("GRACE", "GRACE (structured ID)")
        if (name, line["dataset"]) != ("GENIUS", "mscoco"):  # 40.1 in Table 3, 41.2 in Table 7
            assert by_name[name, line["dataset"], line["trained_on"]] == line["values"]


def test_reference_columns_of_both_settings():
    assert [c.name for c in columns("local")] == [
        "CLIP-SF",
        "BLIP-FF",
        "IRGen",
        "GRACE",
        "GENIUS",
        "GENIUS^R",
    ]
    names = ["CLIP-SF", "CLIP-FF", "BLIP-SF", "BLIP-FF", "GENIUS", "GENIUS^R"]
    assert [c.name for c in columns("universal")] == names
    assert column(columns("local"), "IRGen").values == {("mscoco", 0): 50.7}
    assert all(set(c.values) <= set(mbeir_rows()) for c in columns("universal"))
