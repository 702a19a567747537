"""The study: what `dvc repro` rebuilds. DVC decides what is stale, Hydra composes, a stage is an ordinary run.

    params.yaml ─ compose ─▶ composed.yaml ─┬─ data ─▶ study/data.json
      (written by people)     (tracked)     └─ run <stage> ─▶ study/<stage>/ ─ report ─▶ study/report/

`python -m pipeline.study --help` lists the commands; docs/study.md says how a stage is added.
"""
