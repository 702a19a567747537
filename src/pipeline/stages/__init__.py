"""Stages: one file each, a `pipeline.contracts.Stage`. Stages know no framework."""
