"""The flow network of a scheduling round (thesis §6.2): upper vertices, arcs, and tasks as rows of options.

In the order in which to read it:

- ``vertices``: the numbers of all vertices except tasks;
- ``model_answers``: the questions to a cost model, and the check of its answers;
- ``option_pool``: the options of tasks by the model's last answers;
- ``task_rows``: the rows of a round, made from options and policies;
- ``upper_arcs``: the arcs and supplies above the tasks (Table C.1);
- ``flow_network``: the network that is kept from round to round;
- ``change_log``: the differences between rounds, which keep a warm solver up to date;
- ``flow_trace``: the places of tasks, read from a flow;
- ``export``: the network as DIMACS with names, and as a picture.
"""
