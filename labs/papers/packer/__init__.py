"""The Packer paper's evaluation (section III) on synthetic jobs: ``dios lab repro packer``.

Read the modules in this order:

- ``evaluation``: the figures and the function that makes them;
- ``runs``: the simulations of all policies that the figures share;
- ``admitted``: Figures 3 to 5;
- ``decisions``: Figure 6, with Tetris and slots of ``published_rules``;
- ``one_server``: Figures 7 and 8;
- ``knowledge``: two figures of our own about the causes of the gains; ``missing_capacity`` has Tetris as
  published, and the links that it overloads.
"""
