"""The closed format of results: a caller decodes it without running code that a worker chose.

Read in this order:

- ``forms``: the rows of the format, and the rules for keys of dictionaries and sets.
- ``writer`` and ``reader``: a value as operations and scalars, and back, within a budget and a time.
- ``builtin_forms``: built-in containers, and types of the standard library.
- ``class_forms``: dataclasses, named tuples, enumerations, exceptions and permitted classes of the program.
- ``array_forms``: numpy; ``matrix_forms``: scipy.sparse.
- ``arrow_forms``: pyarrow; ``polars_forms``: polars.
- ``pandas_forms``: pandas; ``dtype_forms``: its types.
- ``estimator_forms``: scikit-learn, for programs that permit it.
- ``harmless``: the texts of exceptions, bounded and escaped.
"""
