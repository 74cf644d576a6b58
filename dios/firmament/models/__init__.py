"""Cost models: the policies that give the costs of places (thesis chapter 7 and appendix C).

Begin with ``protocol`` (the interface), ``base`` (the class to inherit from) and ``trivial`` (ten lines).
``catalogue`` has all models by name. ``spread`` is the default.

The thesis' models: ``quincy``, ``whare``, ``coco``, ``green`` with ``green_power``, and the baseline
``random_fit``. Other schedulers as cost models: ``alsched``, ``apollo``, ``bistro``, ``choosy`` (also H-DRF),
``ciel``, ``delay``, ``hawk`` (also Mercury), ``hfs``, ``jockey``, ``kmn``, ``late``, ``paragon`` (also
Quasar), ``sparrow``, ``tarcil``, ``tetrisched``. Shared parts: ``cost_terms``, ``locality`` and
``data_model`` (input and its places), ``runtimes`` (estimates), ``resource_tree`` (sums along the tree),
``admission`` (tasks admitted by shares), ``slow_downs`` (measured interference), ``considered`` (options of
a run that only some models consider).
"""
