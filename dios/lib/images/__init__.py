"""The images of sandboxes: root file systems that a user has as OCI layouts, brought to nodes.

- ``images``: reads an image and brings it to a node; the name that it returns takes the place of a template.
- ``layouts``: the parts of a layout, each compared with its digest, in a folder or in an archive of one;
  ``group_archives``: such an archive that is a file of a group.
- ``layers``: the files that result from the layers of an image.
- ``tar_reader``: the bounded input of a layer.
- ``packing``: the archive of these files, as a node reads it.
- ``change_archives``: the archives of files that sandboxes have changed in an image.
"""
