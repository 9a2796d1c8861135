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
    run = read_run(studies.folder / "state-8-fsdp.h5")
    assert run.ranks == 8


def test_ranks_on_one_gpu_say_nothing_of_links(tmp_path, monkeypatch):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    studies = findings.Studies(tmp_path, "cuda", findings.SCALES["tiny"])
    assert studies.gpus == 1
    claims = [c for c in findings.CLAIMS if "all-reduce" in c.text.lower()]
    assert len(claims) == 2
    for row in findings.find(studies, tuple(claims)).rows:
        assert row[-1] == "not claimed" and "share 1 GPU" in row[2]


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
