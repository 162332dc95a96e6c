"""A mirror: tables of objects of an org that equal it, complete from the first row on.

`reads` says what a read of the org is worth, `merging` what becomes of a record when events and
reads of it come together; both decide only: no Spark, no I/O, no clock. `job` has the mirror
itself, `stream` the way of its events.
"""
