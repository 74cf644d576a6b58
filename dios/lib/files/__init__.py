"""The files of a group: paths, directories and whole changes over the group's catalogue.

Read in this order:

- ``paths``: the meaning of ``group/path/name``
- ``tree``: the directories of a catalogue
- ``catalogue_places``: the catalogue of a group, found by the keyring or handed to a task
- ``disks``: how many disks have a file, further replicas, and the check of their bytes before something else
  is destroyed
- ``catalogue_record``: the replicas of a catalogue, read and written as one
- ``list_repair``: the nodes that have a catalogue, and one catalogue of several that differ
- ``notes``: the notes of former files that a change of the catalogue leaves
- ``cached_catalogue``: the tree of a catalogue, read again only when it has changed
- ``sound_replicas``: reading an object from a replica with the digest of the catalogue, the nearest first
- ``parts``: reading large files, which are several objects
- ``group_list``: changing, moving and removing files; ``group_files``: reading them
- ``staging``: files that are stored but not visible yet
- ``sources``: the bytes of a new file; ``uploads``: storing a large one in parts
- ``tier``: cold files whose bytes are in a store outside of the cluster
- ``downloads``: writes stored files, former ones too, to local ones, and continues interrupted large ones
- ``pages``: the bytes of a file that is being written; ``writers``: files for writing
- ``groups``: the groups that a process can reach; ``shares``: groups that others may read
- ``synchronize``: makes a directory of a group equal to a local one, or the reverse
- ``filesystem``: the fsspec file system ``dios://``, for pandas, Polars, pyarrow, DuckDB and Dask

``docs/files.md`` is the guide for their users. Only ``filesystem`` needs fsspec.
"""
