"""stage=frameworks: what each framework does here of what a framework is for, with the command that shows it (row D2).

stage.py is the stage, duties.py has the rows, each a command and what the code declares of it, checked.py composes and
checks the commands, ways.py reads the graphs of stage=graph off the code, installed.py and overhead.py say what holds
on this machine, page.py makes docs/frameworks.md.
"""
