"""What a training came to, as a table and as plain lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table

from mcover import statistics
from mcover.lab.training.history import History

_ENDS = {
    "epochs": "",
    "loss": ", where the loss fell below its limit",
    "errors": ", where the training images were right",
    "interrupt": "",
}


def summary(histories: list[History], tested: int) -> Table:
    """The last epoch in figures; over seeds where there are several, else over test images."""
    several = len(histories) > 1
    epochs = [one.epoch[-1] for one in histories]
    same = min(epochs) == max(epochs)
    title = f"after {epochs[0]:.6g}" if same else f"after {min(epochs):.6g} to {max(epochs):.6g}"
    end = _ENDS[histories[0].stopped] if len({one.stopped for one in histories}) == 1 else ""
    table = Table(title=f"{title} epochs{end}", title_justify="left")
    table.caption = "intervals: over " + (
        f"{len(histories)} seeds" if several else f"{tested:,} test images; one seed"
    )
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")

    collapse = [one.collapse_error[-1] for one in histories]
    wrong = np.arange(tested) < round(collapse[0] * tested)
    error = statistics.mean(collapse) if several else statistics.fraction(wrong)
    covers = histories[0].cover_error[-1]
    table.add_row("test error of the collapse" if len(covers) > 1 else "test error", f"{error:.4f}")
    if len(covers) > 1 and several:
        mean = statistics.mean([one.cover_error[-1].mean() for one in histories])
        table.add_row(f"test error of a cover, mean of {len(covers)}", f"{mean:.4f}")
    elif len(covers) > 1:
        spread = f"{covers.mean():.4f}, from {covers.min():.4f} to {covers.max():.4f}"
        table.add_row(f"test error of a cover, mean of {len(covers)}", spread)
    loss = "training loss per cover" if len(covers) > 1 else "training loss"
    for name, column in ((loss, "train_loss"), ("seconds of training", "seconds")):
        values = [getattr(one, column)[-1] for one in histories]
        table.add_row(name, f"{statistics.mean(values):.4g}" if several else f"{values[0]:.4g}")
    gradients = [int(one.gradients[-1]) for one in histories]
    shown = f"{statistics.mean(gradients):,.0f}" if several and not same else f"{gradients[0]:,}"
    table.add_row("gradients of a single model", shown)
    return table


def course(history: History) -> dict[str, Any]:
    """A history as plain lists, for JSON."""
    names = ("epoch", "train_loss", "cover_error", "collapse_error", "seconds", "gradients")
    return {name: getattr(history, name).tolist() for name in names} | {"stopped": history.stopped}
