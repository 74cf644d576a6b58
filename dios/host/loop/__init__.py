"""The node's event loop: feed events to the core, make its changes durable, then carry out its effects.

Everything here runs in one thread, except the writer thread of ``persister`` and the copies that
``effector`` gives to worker threads. Read in this order:

- ``driver``: the path of every event through the node.
- ``effector``: carries out the effects of a step; ``effect_kinds`` groups effects by what they touch.
- ``outbox``: encodes replies and queues them for their connections; ``vectors`` answers vectors of calls.
- ``staging``: turns a step's store operations into jobs; ``persister`` is the thread that writes them;
  ``commit_results`` says which jobs of a batch succeeded.
- ``fair_queue``: shares the worker threads among principals; ``shared_places`` shares places for longer work.
- ``call_meter``: counts calls while somebody reads metrics; ``call_tracer`` times the parts of traced calls.
- ``node_log``: the node's own log; ``log_text`` keeps secrets out of it.
- ``clock``, ``entropy``, ``recorder``: time, random bytes, recordings for replay.
"""
