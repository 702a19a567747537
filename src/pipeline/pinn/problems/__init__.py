"""Problems: one file each, a spec that follows pipeline.pinn.problem.Problem. Adding one edits nothing else."""
