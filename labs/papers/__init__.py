"""The experiments of the papers that DIOS implements (``dios lab repro``).

``figures`` is the common form of a reproduced figure, ``judgements`` compares published results with ours,
``claims`` has every claim of the papers with its state here, and writes ``docs/papers.md``.
Each folder reproduces one evaluation. Its ``evaluation`` lists the figures and makes them; read that first:

- ``dios``: the thesis on DIOS, chapter 5 (objects, tasks, streams and jobs on real nodes);
- ``interference``: the thesis on DIOS, chapter 2 (speeds and neighbours, on the machine at hand);
- ``firmament``: the thesis on Firmament, chapter 8 (placement quality, energy, solver time);
- ``sdrf``: the SDRF paper, section VII (waiting times and the live tree);
- ``dc_drf``: the DC-DRF paper, section 5 (accuracy by deadline);
- ``packer``: the Packer paper, section III (admission, utilisation, shares of a link);
- ``sprayer``: the thesis on Sprayer, section 3.4 (network functions on several cores), with its test lab.
"""
