"""All studies by name, in the order of the paper."""

from __future__ import annotations

from mcover.errors import McoverError
from mcover.lab.studies.catalogue import (
    budget,
    committees,
    costs,
    low_data,
    networks,
    perceptrons,
    table_1,
)
from mcover.lab.studies.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        table_1.TABLE_1,
        perceptrons.LOADING,
        committees.COMMITTEE_SETTINGS,
        committees.COMMITTEE_ERRORS,
        committees.COMMITTEE_RATES,
        networks.MLP_ERRORS,
        perceptrons.TOPOLOGY,
        committees.COMMITTEE_TOPOLOGY,
        perceptrons.COVERS,
        perceptrons.VARIANTS,
        costs.COSTS,
        budget.EQUAL_BUDGET,
        low_data.LOW_DATA,
        low_data.LOW_DATA_CONV,
    )
}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise McoverError(f"no study {name!r}; write one of {', '.join(STUDIES)}.")
    return STUDIES[name]
