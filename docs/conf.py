"""Configuration of the documentation site, which ``make docs`` builds with warnings as errors."""

import sys
from pathlib import Path
from typing import Any

import mcover

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mcover"
author = "The mcover developers"
copyright = "the mcover developers"
version = release = mcover.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "myst_nb",
    "inline_figures",
    "mathml",
    "no_requests",
    "reference",
]
exclude_patterns = ["_build"]

# Markdown, and one notebook, which the build executes.
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_output_stderr = "remove"  # progress bars

# The API reference: docstrings, in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

nitpicky = True
nitpick_ignore_regex = [
    (r"py:class", r"mcover\.nn\.mixing\.Rules"),  # private: only mcover.distributed passes them
    # Names of other projects: every build would have to download their inventories.
    (
        r"py:.*",
        r"(concurrent|torch|np|numpy|nn|collections|pathlib|sklearn|lightning|transformers|peft|optuna|pandas|matplotlib)\..*",
    ),
    (
        r"py:.*",
        r"(Tensor|ArrayLike|NDArray|ParamsT|Path|SeedSequence|Generator|Optimizer|Figure|Axes|DataFrame)",
    ),
]

# Pages make no requests: the theme's files are part of the site, and formulas are MathML.
html_theme = "furo"
html_title = "mcover"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["routes.js"]
html_favicon = "_static/favicon.svg"
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False
html_theme_options = {"sidebar_hide_name": False}
pygments_style, pygments_dark_style = "friendly", "github-dark"


def _list_studies(app: Any, page: str, source: list[str]) -> None:
    """The contents of the results, which the repository shows as the list of all pages."""
    if page == "results/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def setup(app: Any) -> None:
    app.connect("source-read", _list_studies)
