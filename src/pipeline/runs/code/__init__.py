"""The hash of the code that decides a result: which modules, files and variables it is made of."""
