"""Tables with a row a record: current tables, their history, and the tables of a mirror.

`fold` applies the changes of one record, `reads` defines which changes a read of the org is
guaranteed to contain, and `merging` how events and reads of a record are merged. All three are pure
logic, without Spark, I/O or a clock. `rows` applies them to Arrow data on executors, `table` has
the tables of one object, `queue` the records to read again, and `follower` applies the engine's
steps.
"""
