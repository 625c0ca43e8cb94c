"""Every configuration of the zoo, alone and in both routings."""

import pytest
from checks import CHECKS, check, check_base
from models import ROUTINGS, ZOO

from pages import QUANTIZERS, assert_prints_what_it_shows


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
    assert_prints_what_it_shows(page, tmp_path)
