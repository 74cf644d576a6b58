"""The measurements that coordinators have of tasks and machines (§6.5.3), as plain data.

Read in this order: ``aggregates`` (sums and histograms of values), ``samples`` (one measurement, and the
batches that coordinators exchange), ``profiles`` (one class of tasks on one type of machine),
``usage_profile`` (the use of one task, second by second) and ``usage_profiles`` (those of all runs of a
job), ``knowledge_base`` (everything together, and the questions that cost models ask), ``storage`` (the
stored form).
"""
