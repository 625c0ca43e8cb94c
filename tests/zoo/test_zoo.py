"""Every configuration of the zoo, alone and in both routings."""

import pytest
from checks import CHECKS, check, check_base
from models import ROUTINGS, ZOO


@pytest.mark.parametrize("name", ZOO)
def test_base(name):
    check_base(ZOO[name])


@pytest.mark.parametrize("what", CHECKS)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, routing, what, tmp_path):
    check(what, ZOO[name], routing, tmp_path)


def test_size():
    """What the zoo promises."""
    assert len(ZOO) >= 70
