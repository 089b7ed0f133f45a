"""`replicax doctor`: what is wrong with an installation, and what makes a program slow.

`_facts.py` looks at the machine, `_checks.py` judges what was found. `_examination.py` lets a
script train on several numbers of replicas; `_scaling.py` and `_advice.py` draw conclusions.
"""
