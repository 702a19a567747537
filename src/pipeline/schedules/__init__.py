"""Learning-rate schedules: one file each. A schedule gives the factor by which the optimizer's rate is multiplied.

The factor depends on the step and the training's length alone, and is computed on the host in float64, so that every
backend trains by the same rates.
"""
