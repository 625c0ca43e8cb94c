"""All studies by name, in the order of the paper."""

from __future__ import annotations

from mcover.errors import McoverError
from reproduction.studies import (
    binary,
    costs,
    league,
    networks,
    perceptrons,
    replicas,
    solution_times,
    structured,
    when,
    wrong_labels,
)
from reproduction.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        perceptrons.TABLE_1,
        perceptrons.LOADING,
        networks.COMMITTEE_SETTINGS,
        networks.COMMITTEE_ERRORS,
        networks.COMMITTEE_RATES,
        replicas.COMMITTEE_GROWTH,
        networks.MLP_ERRORS,
        perceptrons.TOPOLOGY,
        networks.COMMITTEE_TOPOLOGY,
        perceptrons.COVERS,
        perceptrons.VARIANTS,
        perceptrons.SWEEPS,
        solution_times.SOLUTION_TIMES,
        structured.STRUCTURED,
        wrong_labels.WRONG_LABELS,
        costs.COSTS,
        perceptrons.EQUAL_BUDGET,
        networks.LOW_DATA,
        networks.LOW_DATA_CONV,
        league.LEAGUE,
        when.WHEN,
        binary.BINARY_NETWORKS,
    )
}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise McoverError(f"no study {name!r}; write one of {', '.join(STUDIES)}.")
    return STUDIES[name]
