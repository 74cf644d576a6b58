"""Explanations of why a task waits or runs where it does (``dios explain``).

In the order in which to read it:

- ``explanation``: the values of an explanation, and their text;
- ``explain_task``: follows the task's flow in a trial round, and tries which changes are sufficient;
- ``counterfactuals``: the changes that would start a waiting task, solved by rounds of a copy;
- ``trial_changes``: these changes, as events of a copy;
- ``free_amounts``: what the machines have free, nearest to the demand first;
- ``excluded``: the machines that the task cannot use, with reasons;
- ``network_paths``: cheapest paths, and solutions of the network with one change;
- ``amounts``: steps and text of amounts of resources.
"""
