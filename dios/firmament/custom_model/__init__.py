"""Cost models of operators, checked and run in a confined task (`dios sched set-model ./mine.py`).

In the order in which to read it:

- ``source``: reads a file; ``loading``: from the text of a file to a model;
- ``contract``: what every model owes the scheduler, on the random clusters of ``example_clusters``;
- ``orders``: what a coordinator sends to the model's task; ``answers``: what that sends back;
- ``state_changes``: copies the tables of the cluster to that task, of which only changes are sent;
  ``knowledge_changes`` does the same for the measured profiles;
- ``program``: the program of the task;
- ``remote_model``: the model as the scheduler sees it.
"""
