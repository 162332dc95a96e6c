"""Mirror: keep complete tables of Salesforce objects in sync with the org.

`reads` defines which changes a read of the org is guaranteed to contain. `merging` defines how
events and reads of a record are merged. Both are pure logic, without Spark, I/O or a clock. `job`
implements the mirror. `stream` ingests its events. `mirror` opens both, and is what programs use.
"""
