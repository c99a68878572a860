"""Named settings, run and stored: the one machinery of ``dladmm compare``, ``dladmm reproduce`` and ``benchmarks/``.

experiment.py    what a TOML file states
plan.py          its cells: single runs, with everything that makes each of them what it is
problem.py       the data, loaded once, and the network that is trained on them
running.py       runs the cells that are not there yet; resumes what was broken off
store.py         a finished cell is a run folder, written whole or not at all
evidence.py      finished cells read back
record.py        a short JSON record per cell: what a results page needs
"""
