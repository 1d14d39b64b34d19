"""Extensions that the core does not need: rare optimizers, whole domains, importers.

Nothing in the core imports it. The entry points in pyproject.toml name its components, as those of
other distributions do; names from the time when they were in the core are still understood.
"""
