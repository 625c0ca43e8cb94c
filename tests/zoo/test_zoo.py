"""Every configuration of the zoo, alone and in both routings."""

import doctest

import pytest
from checks import CHECKS, check, check_base
from models import ROUTINGS, ZOO

from pages import QUANTIZERS, printed, shown


@pytest.mark.parametrize("name", ZOO)
def test_base(name):
    check_base(ZOO[name])


@pytest.mark.parametrize("what", CHECKS)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, routing, what, tmp_path):
    check(what, ZOO[name], routing, tmp_path)


def test_size():
    """The guarantees of the zoo."""
    assert len(ZOO) >= 70


@pytest.mark.parametrize("page", QUANTIZERS)
def test_the_page_runs_and_prints_what_it_says(page, tmp_path):
    said = shown(page)
    ran = printed(page, tmp_path)
    assert ran
    for block, got in ran:
        want = said.get(block.line, got)
        assert doctest.OutputChecker().check_output(want, got, doctest.NORMALIZE_WHITESPACE)
