"""The records of the org: objects, their fields, rows, queries, and the events of their changes.

    fields       what an object is: fields with their types, compound ones, system ones
    values       a field's value, as clients write it, as the table keeps it, as answers show it
    formulas     what a formula field computes
    problems     why a change or a query is refused, with Salesforce's error codes
    table        the rows of objects in SQLite
    queries      SOQL on these rows, made into SQL
    writing      one transaction: changes, checked and kept
    reading      one record, a query, a query page by page, and the org as it was a moment ago
    schemas      the Avro schema of an object's change events
    bitmaps      which fields changed, in the header of a change event
    changes      what the change events of one transaction say
    publishing   where they go: topics, channels with filters, PushTopics
    late         events that come later than their change
    model        `Records`, which all wires use
    result_file  rows of CSV, any run of which can be read
    jobs         jobs of the Bulk API: what they are, and the thread that carries them out
    job_work     what they do

Nothing here knows a wire.
"""
