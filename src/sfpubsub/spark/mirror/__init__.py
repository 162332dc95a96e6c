"""Mirror: keep complete tables of Salesforce objects in sync with the org.

`reads` defines what a read of the org is guaranteed to contain, `merging` how events and reads of a
record are merged; both are pure logic without Spark, I/O or a clock. `job` implements the mirror,
`stream` the ingestion of its events.
"""
