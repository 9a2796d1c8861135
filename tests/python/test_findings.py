"""Findings: that each claim is tried, on studies as small as can be."""

import pytest

from lockstep import findings
from lockstep.runfile import read_run


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("findings")
    studies = findings.Studies(folder, "cpu", findings.SCALES["tiny"])
    return findings.find(studies), studies


def test_every_claim_has_a_measurement_and_an_answer(table):
    made, _ = table
    assert [row[0] for row in made.rows] == [c.text for c in findings.CLAIMS]
    for claim, bound, measured, held in made.rows:
        assert held in ("yes", "no", "not claimed"), (claim, measured)
        assert any(character.isdigit() for character in measured), claim


def test_answers_that_do_not_depend_on_speed_are_right(table):
    made, studies = table
    held = {row[0]: row[-1] for row in made.rows}
    assert held["Attention's memory grows with T², flash attention's with T"] \
        == "yes"
    assert held["FSDP saves 65 % of the state (8 ranks)"] == "yes"
    run = read_run(studies.folder / "eight-fsdp.h5")
    assert run.ranks == 8


def test_a_program_that_fails_is_told_and_the_rest_goes_on(tmp_path):
    def fails(studies):
        return studies.train("bad", lr=-1)
    claims = (findings.Claim("a", "b", fails),
              findings.Claim("c", "d",
                             lambda s: findings.Finding("1", False)))
    studies = findings.Studies(tmp_path, "cpu", findings.SCALES["tiny"])
    made = findings.find(studies, claims)
    assert made.rows[0][-1] == "could not tell" and "lr" in made.rows[0][2]
    assert made.rows[1] == ["c", "d", "1", "no"]
