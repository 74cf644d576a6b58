"""The compiled parts of admission, on arrays of whole units (Packer paper, Algorithm 1 and equations 6 to 8).

Read the modules in this order:

- ``records``: the arrays of a data centre and of a job, scratch memory, and a policy's parameters;
- ``reservations``: reserving and releasing amounts of servers and links;
- ``scores``: the score of each server for a task, by the server's resources and link;
- ``paths``: the score of the links between switches;
- ``placement``: the loop over a job's nodes, and the explanation of a refusal.
"""
