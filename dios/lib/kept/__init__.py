"""Kept replicas: the nodes hold the number of replicas of a group's files that its user was promised.

A user's program records the promise with ``Promises``; ``docs/replicas.md`` shows that. Read in this order:

- ``records``: promises, and the versions that replicas were seen to have, as bytes that every node keeps
- ``versions``: which replicas of an object without a digest are current, and which conflict
- ``decisions``: the copies to make and to drop next for one object, as a function without effects
- ``objects``: the objects that a user's promises cover, and the order in which the keeper looks at them
- ``replicas``: the replicas of one object, as references of a session
- ``comparisons``: the replicas of listed files whose bytes were compared with the digest in the list
- ``notes``: the former files that wait to be destroyed, and the objects for which they wait
- ``lists``: the list of a group's files, as a keeper reads and edits it, and its replicas
- ``leading``: the knowledge of a leading keeper
- ``keeper``: looks at objects, copies and drops replicas; the leading node runs it for each user
- ``repair``: finds the bytes of a damaged object in one of its replicas
- ``promises``: the interface for users' programs
"""
