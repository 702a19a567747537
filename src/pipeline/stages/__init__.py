"""Stages: one file each, a spec with `run(experiment, resolved, run) -> Result`. Stages know no framework.

`starts_from_run`: the stage works on the run that `run=<id>` names, with that run's experiment.
`check(experiment)`, where a stage has it: what can be refused before the run begins. Raises UserError.
`check_keys(experiment, keys)`, where a stage has it: refuse keys that the user has set and the stage would not follow.
`resolved`, where a stage has it and it is not None: where it computes, whatever the config says.
`recorded`: the stage leaves a run of its own behind (a folder and an MLflow run).
`reads`, where a stage has it: the only groups that decide its result (all of them, where it has not).
"""
