"""The laboratory: data sets, the paper's models, training, studies, figures and the report."""
