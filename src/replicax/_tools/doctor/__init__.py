"""`replicax doctor`: what is wrong with an installation, and what makes a program slow.

`facts.py` looks at the machine, `checks.py` judges what was found. `examination.py` lets a script
train on several numbers of replicas; `conclusions.py` says what that means.
"""
