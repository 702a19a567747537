"""Stages that are about saved runs, for which no experiment is built (contracts.runs.AboutRuns)."""
