"""A mirror: current tables of objects of an org, complete from the first row on.

`reads` says what a read of the org is worth, `merging` what becomes of a record when events and
reads of it come together. Both decide only: no Spark, no I/O, no clock.
"""
