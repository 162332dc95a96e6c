"""The records of the org: objects, their fields, rows, queries, and the events of their changes.

    fields       definitions of objects: fields and types, compound and system fields
    values       field values: as clients write them, as stored, as returned
    formulas     evaluation of formula fields
    problems     errors for changes and queries, with Salesforce's error codes
    table        the rows of objects in SQLite
    queries      translation of SOQL to SQL
    writing      transactions: validated and stored changes
    reading      access to records by id and by query, optionally with a lag
    schemas      the Avro schema of an object's change events
    bitmaps      lists of changed fields in the header of a change event
    changes      contents of the change events for one transaction
    publishing   destinations of change events: topics, channels with filters, PushTopics
    late         events that are published later than their change
    model        `Records`, used by all wire protocols
    result_file  CSV files with random access to rows
    job_store    the jobs of the Bulk API as they are stored, with their files
    jobs         jobs of the Bulk API, and the worker thread that runs them
    job_work     the implementation of query jobs and ingest jobs

This package is independent of the wire protocols.
"""
