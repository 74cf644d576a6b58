"""The implementation of MapReduce jobs (thesis §3.3, §5.3); ``dios.lib.mapreduce.run`` is the entry.

Read in this order:

- ``functions``: the map, reduce and combine functions of a job's module
- ``inputs``, ``records``: the objects of a job, and their division among mappers at record boundaries
- ``ledger``: the state of a job, and the decision which task to start next; ``speculation`` chooses a slow
  mapper to copy
- ``controller``: starts the tasks and acts on their reports; ``orders`` are the messages between them
- ``saved``: what a controller that begins again has of an earlier one
- ``task``: the main function of a mapper or reducer
- ``mapping``, ``collect``, ``chunks``: the work of a mapper, and the format of intermediate data
- ``intake``, ``grouping``: the work of a reducer
- ``results``: the outputs and the reports of a job
"""
