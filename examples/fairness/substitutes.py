"""Share processors and GPUs between two users; the first can work on either.

Run it as python examples/fairness/substitutes.py.
"""

import numpy as np

from dios.fairness import drf, drf_with_substitutes

# A unit of work takes these parts of all processors and of all GPUs.
RENDER = np.array([[0.0, 0.25], [0.5, 0.0]])  # a picture: a quarter of the GPUs, or half of the processors
BUILD = np.array([[0.1, 0.0]])  # processors alone

allocation = drf_with_substitutes([RENDER, BUILD])
for name, work, share in zip(("render", "build"), allocation.work, allocation.share, strict=True):
    print(f"{name:8}  work {work.sum():.1f}  of what it could do alone  {share:.0%}")
print(f"used  {', '.join(f'{used:.0%}' for used in allocation.amounts.sum(axis=0))} of processors, GPUs")

# DRF knows one way for each user: on GPUs alone, render does 4 of the 6 pictures that it could do alone.
one_way = drf(np.array([RENDER[0] * 100, BUILD[0] * 10]))
print(f"one way each  {one_way.amounts[0, 1] / 0.25:.1f} pictures, {one_way.amounts[1, 0] / 0.1:.1f} builds")
