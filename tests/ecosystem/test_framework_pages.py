"""Pages of the documentation that need another framework run, and print what they say."""

import doctest

import pytest

from pages import FRAMEWORKS, printed, shown


@pytest.mark.parametrize("page", FRAMEWORKS)
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(page, tmp_path):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said = shown(page)
    ran = printed(page, tmp_path)
    assert ran
    for block, got in ran:
        want = said.get(block.line, got)
        assert doctest.OutputChecker().check_output(want, got, flags), f"{want}\n!=\n{got}"
